package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
	"github.com/fairway-net/fairway/lab/process"
)

// Down removes the lab with all its parts. A lab that does not exist is no error.
func (l Lab) Down(p *Progress) error {
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

// clear removes the lab's parts in an order that lets no part come back: first the processes, then the resources that
// they held. It removes lab.json last, so that an interrupted clear can run again.
func (l Lab) clear() error {
	state, err := l.load()
	if err != nil {
		state = &State{} // without a readable file, use only what the kernel shows
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
	last := []string{leavingFile, stateFile}
	if err := l.removeFiles(slices.DeleteFunc(names(entries), func(n string) bool { return slices.Contains(last, n) })); err != nil {
		return err
	}
	// Removing the last two files needs the lock. If only one of them is left, another lab that goes down would count
	// this lab as running.
	unlock, err := lockMachine()
	if err != nil {
		return err
	}
	defer unlock()
	return l.removeFiles(last)
}

// removeFiles removes parts of the lab's directory.
func (l Lab) removeFiles(names []string) error {
	for _, name := range names {
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

// kill ends the recorded processes, then every other process in one of the lab's network namespaces. A node's pods have
// their own namespaces, and end together with the node's init.
func (l Lab) kill(state *State) error {
	if err := process.KillAll(state.Processes); err != nil {
		return err
	}
	inodes, err := l.fabric().Inodes()
	if err != nil {
		return err
	}
	for range 10 { // a process may start another during the search
		found, err := process.InNamespaces(inodes)
		if err != nil || len(found) == 0 {
			return err
		}
		if err := process.KillAll(found); err != nil {
			return err
		}
	}
	return errors.New("processes of the lab start faster than they can be killed")
}

// unmount removes the remaining mounts below the lab's directory, innermost first.
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
		if err := fabric.Detach(point); err != nil {
			return err
		}
	}
	return nil
}
