package push_test

func child([]string) int { return 2 }
