package proc

import "os"

// space is the boot and the namespace of pids: containers have namespaces of their own.
func space() string {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || bootID() == "" {
		return ""
	}
	return bootID() + " " + ns
}
