package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/node"
	"github.com/fairway-net/fairway/lab/process"
)

// Down removes the lab and all that belongs to it. It is no error if there is
// none.
func (l Lab) Down(p *Progress) error {
	if err := CheckRoot(); err != nil {
		return err
	}
	unlock, err := l.lock()
	if errors.Is(err, os.ErrNotExist) {
		p.Say("No lab is up.")
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.remove(); err != nil {
		return err
	}
	p.Done("lab removed")
	return nil
}

// remove undoes everything, and removes the lab's directory.
func (l Lab) remove() error {
	if err := l.clear(); err != nil {
		return err
	}
	if err := os.Remove(l.Dir()); err != nil {
		return fmt.Errorf("remove lab directory: %w", err)
	}
	return nil
}

// clear undoes everything, in an order in which nothing comes back: first the
// processes, then what they held; lab.json last, so that a clear that was
// interrupted can be repeated.
func (l Lab) clear() error {
	state, err := l.load()
	if err != nil {
		state = &State{} // none, or unreadable: go by what the kernel knows
	}
	if err := l.kill(state); err != nil {
		return err
	}
	if err := l.fabric().Delete(); err != nil {
		return err
	}
	if err := l.unmount(); err != nil {
		return err
	}
	if err := node.RemoveCgroups(l.cgroup()); err != nil {
		return err
	}
	if err := l.removeMountpoints(state); err != nil {
		return err
	}
	entries, err := os.ReadDir(l.Dir())
	if err != nil {
		return fmt.Errorf("list lab directory: %w", err)
	}
	for _, name := range append(slices.DeleteFunc(names(entries), func(n string) bool { return n == stateFile }), stateFile) {
		if err := os.RemoveAll(l.path(name)); err != nil {
			return fmt.Errorf("remove lab directory: %w", err)
		}
	}
	return nil
}

func names(entries []os.DirEntry) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.Name()
	}
	return out
}

// kill ends the recorded processes, then every other process in one of the
// lab's network namespaces. A node's pods have namespaces of
// their own, but end with the node's init.
func (l Lab) kill(state *State) error {
	for _, r := range state.Processes {
		if err := r.Kill(); err != nil {
			return err
		}
	}
	inodes, err := l.fabric().Inodes()
	if err != nil {
		return err
	}
	for range 10 { // a process may start another while it is being looked for
		found, err := process.InNamespaces(inodes)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, r := range found {
			if err := r.Kill(); err != nil {
				return err
			}
		}
	}
	return errors.New("processes of the lab start faster than they can be killed")
}

// unmount removes mounts below the lab's directory that are left, innermost
// first.
func (l Lab) unmount() error {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	defer file.Close()
	var points []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], l.Dir()+"/") {
			points = append(points, fields[4])
		}
	}
	slices.Reverse(points)
	for _, point := range points {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}

// makeMountpoints makes the directories over which nodes mount their own, and
// remembers those that were not there.
func (b *builder) makeMountpoints() error {
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

// removeMountpoints removes the directories that this lab made, if they are
// still empty. While another lab is up, that lab removes them later: removing a
// directory would take away that lab's mounts on it.
func (l Lab) removeMountpoints(state *State) error {
	others, err := filepath.Glob("/var/lib/fairway-lab*/lab.json")
	if err != nil {
		return fmt.Errorf("find other labs: %w", err)
	}
	for _, file := range others {
		id := filepath.Base(filepath.Dir(file))
		other := Lab{Name: strings.TrimPrefix(strings.TrimPrefix(id, "fairway-lab"), "-")}
		if other == l {
			continue
		}
		heir, err := other.load()
		if err != nil {
			continue
		}
		heir.Dirs = append(heir.Dirs, state.Dirs...)
		return other.save(heir)
	}
	for _, dir := range slices.Backward(state.Dirs) {
		err := unix.Rmdir(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove mount point %s: %w", dir, err)
		}
	}
	return nil
}
