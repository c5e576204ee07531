// Package process says what a process does, and gives back what this one no longer needs of its
// memory.
//
//	/proc/PID/stat, wchan, syscall ─→ Doing, Spent      (for the errors about child processes)
//	/proc/self/smaps ─→ ReleaseProgram ─→ madvise(2)
//
// It hides the files of /proc. It promises that nothing it does can change what a program does.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseProgram unmaps the pages of the program's own file from this process. Those that are used
// again the kernel maps again, from the page cache. A start runs what each package does at its start,
// which needs two thirds of a file of 80 MB, once; as long as these pages are mapped they count as the
// process' memory, and the kernel takes them back last.
func ReleaseProgram() error {
	file, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("release the program's pages: %w", err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("release the program's pages: %w", err)
	}
	var failed []error
	for _, m := range releasable(text, file) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			failed = append(failed, fmt.Errorf("release the program's pages: madvise: %w", errno))
		}
	}
	return errors.Join(failed...)
}

// A mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// releasable returns the mappings of a file in smaps, proc_pid_smaps(5), whose pages are the file's:
// those that nobody may write, and of which no page is a copy. A linker may have written to what is
// read-only afterwards, and a debugger to code: that would be lost.
func releasable(smaps []byte, file string) (all []mapping) {
	var m mapping
	ours := false
	for line := range bytes.Lines(smaps) {
		f := strings.Fields(string(line))
		switch {
		case len(f) < 2:
		case !strings.HasSuffix(f[0], ":"): // FROM-TO PERMISSIONS OFFSET DEVICE INODE PATH
			var ok bool
			m, ok = parseRange(f[0])
			ours = ok && len(f) == 6 && f[5] == file && (f[1] == "r-xp" || f[1] == "r--p")
		case f[0] == "Anonymous:" && f[1] == "0" && ours:
			all = append(all, m)
		}
	}
	return all
}

// parseRange reads "400000-2608000".
func parseRange(text string) (mapping, bool) {
	from, to, _ := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(from, 16, strconv.IntSize)
	b, errB := strconv.ParseUint(to, 16, strconv.IntSize)
	return mapping{uintptr(a), uintptr(b)}, errA == nil && errB == nil && a < b
}
