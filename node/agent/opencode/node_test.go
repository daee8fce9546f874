package opencode_test

func nodeMain([]string) int { return 2 }
