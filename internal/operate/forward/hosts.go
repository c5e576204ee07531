package forward

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Marks around the lines of one process in the hosts file. The number is its process ID.
const (
	hostsBegin = "# fairway forward %d"
	hostsEnd   = "# end of fairway forward %d"
)

// maxHosts bounds the hosts file that is read.
const maxHosts = 4 << 20

// WriteHosts writes the lines of this process into a hosts file, between marks, and removes those of processes that do
// not live any more. No lines: nothing of this process is left. It changes the file in place, because a container's
// hosts file is a mount, which cannot be replaced. A lock keeps two of these processes apart.
func WriteHosts(path string, pid int, lines []string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("write names to the hosts file: %w [run as root, or use --ports, which needs no names]", err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(old) > maxHosts {
		return fmt.Errorf("read %s: it is larger than 4 MiB", path)
	}
	text := editHosts(old, pid, lines, alive)
	if bytes.Equal(text, old) {
		return nil
	}
	// One write has all of the text. If we are killed before the second call, the file ends with empty lines.
	padded := append(bytes.Clone(text), bytes.Repeat([]byte("\n"), max(0, len(old)-len(text)))...)
	if _, err := f.WriteAt(padded, 0); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// editHosts returns a hosts file without the lines of this process and of dead processes, and with the new lines at its
// end. A block without its end mark ends before the next mark, and else at the end of the file.
func editHosts(old []byte, pid int, lines []string, alive func(int) bool) []byte {
	var out []string
	skip := 0 // the process whose lines are left out
	for line := range strings.Lines(string(old)) {
		begin, isBegin := mark(line, hostsBegin)
		end, isEnd := mark(line, hostsEnd)
		switch {
		case isBegin:
			if skip = 0; begin == pid || !alive(begin) {
				skip = begin
				continue
			}
		case isEnd && (end == skip || end == pid || !alive(end)):
			skip = 0
			continue
		}
		if skip == 0 {
			out = append(out, line)
		}
	}
	if len(lines) > 0 {
		if n := len(out); n > 0 && !strings.HasSuffix(out[n-1], "\n") {
			out[n-1] += "\n"
		}
		out = append(out, fmt.Sprintf(hostsBegin+"\n", pid))
		for _, line := range lines {
			out = append(out, line+"\n")
		}
		out = append(out, fmt.Sprintf(hostsEnd+"\n", pid))
	}
	return []byte(strings.Join(out, ""))
}

// mark returns the process ID of a mark.
func mark(line, format string) (pid int, ok bool) {
	text, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), strings.TrimSuffix(format, "%d"))
	if !ok {
		return 0, false
	}
	pid, err := strconv.Atoi(text)
	return pid, err == nil && pid > 0
}

// alive reports whether a process with this ID lives and is one of these. A new process may have the ID of an old one.
func alive(pid int) bool {
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(append(words, 0), []byte("\x00forward\x00"))
}
