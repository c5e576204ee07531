package process

import (
	"fmt"
	"os"
	"strings"
)

// Doing says what a process is doing, for the error when it is killed because it does not end:
// whether it runs, waits or is stopped, and in which function of the kernel, called from which
// system call with which arguments. Empty: it is gone, or /proc does not tell us.
func Doing(pid int) string {
	fields := stat(pid)
	if fields == nil {
		return ""
	}
	read := func(file string) string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		return strings.TrimSpace(string(text))
	}
	return fmt.Sprintf("state %s, waits in %q, system call %q", fields[0], read("wchan"), read("syscall"))
}

// Spent says how much CPU time a process has used, in words that change as it uses more, and
// whether it runs or would if it got a CPU. Both are empty and false if it is gone.
func Spent(pid int) (cpu string, runs bool) {
	const user, kernel = 11, 12 // of the fields that follow the name
	fields := stat(pid)
	if len(fields) <= kernel {
		return "", false
	}
	return fields[user] + " " + fields[kernel], fields[0] == "R"
}

// stat returns the fields of a process in /proc that follow its name; nil: it is gone.
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(text), ") ") // PID (NAME) STATE …
	if !ok {
		return nil
	}
	return strings.Fields(rest)
}
