package proc

// space is not known there, and so nobody is ever known to have ended.
func space() string { return "" }

func ended(ID) bool { return false }
