package process

import (
	"fmt"
	"os"
	"strings"
)

// Doing describes the present activity of a process, for the error when it does not end and is killed. The description
// has the state, the kernel function in which the process waits, and the system call with its arguments. Doing returns
// "" if the process has ended or /proc has no information.
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

// Spent returns the CPU time that a process has used, as a text that changes when the time grows. runnable says that
// the process runs or waits for a CPU. If the process has ended, Spent returns "" and false.
func Spent(pid int) (cpu string, runnable bool) {
	const user, kernel = 11, 12 // indexes in the fields of stat
	fields := stat(pid)
	if len(fields) <= kernel {
		return "", false
	}
	return fields[user] + " " + fields[kernel], fields[0] == "R"
}

// stat returns the fields of /proc/PID/stat behind the name, or nil if the process has ended.
func stat(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(text), ") ") // PID (NAME) STATE …
	if !ok {
		return nil
	}
	return strings.Fields(rest)
}
