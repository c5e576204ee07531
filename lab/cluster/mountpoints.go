package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/node"
)

// The files with which a lab passes the directories that it made on the machine to another lab.
const (
	leavingFile   = "leaving"    // this lab is going down, and takes no directories over
	inheritedFile = "inherited-" // followed by the giving lab's id; holds directories, outermost first
)

// lockMachine keeps other labs from making or removing directories of the machine. It locks a directory that always
// exists, so the lock leaves no file.
func lockMachine() (unlock func(), err error) {
	dir, err := os.Open("/var/lib")
	if err != nil {
		return nil, fmt.Errorf("lock mount points: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err = apiclient.Poll(ctx, 5*time.Millisecond, func(context.Context) error { return unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock mount points: %w", err)
	}
	return func() { dir.Close() }, nil
}

// makeMountpoints makes the directories over which nodes mount their own, and records the directories that did not
// exist.
func (b *builder) makeMountpoints() error {
	unlock, err := lockMachine()
	if err != nil {
		return err
	}
	defer unlock()
	for _, point := range node.Mountpoints {
		var missing []string
		for dir := point; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(dir); err == nil {
				break
			}
			missing = append(missing, dir)
		}
		slices.Reverse(missing)
		for _, dir := range missing {
			b.state.Dirs = append(b.state.Dirs, dir)
			if err := b.save(b.state); err != nil {
				return err
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return fmt.Errorf("create mount point: %w", err)
			}
		}
	}
	return nil
}

// removeMountpoints removes the empty directories that this lab made or took over. If another lab is up, that lab takes
// them over and removes them later. Removing a directory now would also remove the other lab's mounts on it.
func (l Lab) removeMountpoints(state *State) error {
	unlock, err := lockMachine()
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.WriteFile(l.path(leavingFile), nil, 0o644); err != nil {
		return fmt.Errorf("leave the machine: %w", err)
	}
	dirs, err := l.inherited()
	if err != nil {
		return err
	}
	dirs = append(slices.Clone(state.Dirs), dirs...)
	heir, found, err := l.heir()
	if err != nil {
		return err
	}
	if found {
		return heir.inherit(l, dirs)
	}
	for _, dir := range slices.Backward(dirs) {
		err := unix.Rmdir(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove mount point %s: %w", dir, err)
		}
	}
	return nil
}

// heir finds another lab that is not going down.
func (l Lab) heir() (Lab, bool, error) {
	files, err := filepath.Glob("/var/lib/fairway-lab*/" + stateFile)
	if err != nil {
		return Lab{}, false, fmt.Errorf("find other labs: %w", err)
	}
	for _, file := range files {
		id := filepath.Base(filepath.Dir(file))
		other := Lab{Name: strings.TrimPrefix(strings.TrimPrefix(id, "fairway-lab"), "-")}
		if _, err := os.Stat(other.path(leavingFile)); other != l && errors.Is(err, os.ErrNotExist) {
			return other, true, nil
		}
	}
	return Lab{}, false, nil
}

// inherit takes over the directories that another lab made. It records them in a separate file, because the receiving
// lab may be writing its own state file.
func (l Lab) inherit(from Lab, dirs []string) error {
	if len(dirs) == 0 {
		return nil
	}
	if err := os.WriteFile(l.path(inheritedFile+from.id()), []byte(strings.Join(dirs, "\n")), 0o644); err != nil {
		return fmt.Errorf("pass mount points on to lab %s: %w", l, err)
	}
	return nil
}

// inherited returns the directories that this lab took over.
func (l Lab) inherited() ([]string, error) {
	files, err := filepath.Glob(l.path(inheritedFile + "*"))
	if err != nil {
		return nil, fmt.Errorf("find what other labs made: %w", err)
	}
	var dirs []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read what another lab made: %w", err)
		}
		dirs = append(dirs, strings.Split(string(text), "\n")...)
	}
	return dirs, nil
}
