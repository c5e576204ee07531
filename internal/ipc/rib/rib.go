package rib

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// DefaultDir has a directory for each node: nodes of a laboratory may share a file system.
const DefaultDir = "/run/fairway/bgp"

// The files.
const (
	podCIDRsFile = "podcidrs.json"
	receivedFile = "received.json"
	ownersFile   = "owners.json"
)

// maxSize is how large a file may be that is read: eight routers with 10,000 prefixes of each family.
const maxSize = 32 << 20

// recheck is how often a Watch asks to look without a notice.
const recheck = 10 * time.Second

// A Dir is the directory of one node. The zero value is none: nothing is read, written or watched.
type Dir string

// Of returns the directory of a node.
func Of(base, node string) Dir { return Dir(filepath.Join(base, node)) }

// A Route is one that a router announced.
type Route struct {
	Prefix netip.Prefix `json:"prefix"`
	// NextHop is what the router named, and Router the address of the session with it; invalid: not known.
	NextHop netip.Addr `json:"nextHop"`
	Router  netip.Addr `json:"router"`
}

// SetPodCIDRs says which podCIDRs the speaker is to announce, in this order. None: nothing, and it
// need not tell what it receives.
func (d Dir) SetPodCIDRs(all []netip.Prefix) error {
	if len(all) == 0 {
		return d.remove(podCIDRsFile)
	}
	return d.write(podCIDRsFile, all)
}

// PodCIDRs are those that are to be announced.
func (d Dir) PodCIDRs() (all []netip.Prefix, err error) { return all, d.read(podCIDRsFile, &all) }

// Asked reports whether somebody wants to know what routers announce: who has podCIDRs announced.
func (d Dir) Asked() (bool, error) {
	all, err := d.PodCIDRs()
	return len(all) > 0, err
}

// SetReceived says what the routers have announced, in this order. Nil: nobody asks.
func (d Dir) SetReceived(all []Route) error {
	if all == nil {
		return d.remove(receivedFile)
	}
	return d.write(receivedFile, all)
}

// Received is what routers announced when the speaker was last there.
func (d Dir) Received() (all []Route, err error) { return all, d.read(receivedFile, &all) }

// ByRouters is in place of a node that announces an address, where routers lead to it by any node. No Node has such a
// name, so that an agent which does not know it finds no way there.
const ByRouters = "!routers"

// SetOwners says which nodes announce the addresses with which pods may leave the cluster. None: there
// are no such addresses.
func (d Dir) SetOwners(all map[netip.Addr]string) error {
	if len(all) == 0 {
		return d.remove(ownersFile)
	}
	return d.write(ownersFile, all)
}

// Owners are those nodes as they were when the speaker was last there.
func (d Dir) Owners() (all map[netip.Addr]string, err error) { return all, d.read(ownersFile, &all) }

// Remove removes the directory, and the one of all nodes if it is empty then.
func (d Dir) Remove() error {
	if d == "" {
		return nil
	}
	if err := os.RemoveAll(string(d)); err != nil {
		return fmt.Errorf("remove what agent and speaker told each other: %w", err)
	}
	_ = os.Remove(filepath.Dir(string(d))) // not empty, or the mount point of a container
	return nil
}

func (d Dir) write(name string, value any) error {
	if d == "" {
		return nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	path := filepath.Join(string(d), name)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		return nil
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("write %s: %w [does the pod mount %s?]", name, err, DefaultDir)
	}
	// No fsync: after a crash of the machine the directory is gone, as it is in memory.
	if err := os.WriteFile(path+".new", text, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (d Dir) remove(name string) error {
	if d == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(string(d), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// read leaves the value as it is where there is no file.
func (d Dir) read(name string, value any) error {
	if d == "" {
		return nil
	}
	path := filepath.Join(string(d), name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", name, err)
	case info.Size() > maxSize:
		return fmt.Errorf("read %s: it has %d bytes, more than %d", name, info.Size(), maxSize)
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// Watch calls changed at once, when a file may have changed, and every ten seconds, until ctx ends. It makes the
// directory. problem is told if that fails, or if there are no notices.
func (d Dir) Watch(ctx context.Context, changed func(), problem func(error)) {
	if d == "" {
		<-ctx.Done()
		return
	}
	files, err := d.notices()
	if err != nil {
		problem(fmt.Errorf("changes in %s are found within %v: %w [raise fs.inotify.max_user_instances?]", d, recheck, err))
		files = &fsnotify.Watcher{} // its channels never tell anything
	} else {
		defer files.Close()
	}
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		changed()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-files.Events:
		case <-files.Errors: // notices were lost
		}
	}
}

func (d Dir) notices() (*fsnotify.Watcher, error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, err
	}
	files, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := files.Add(string(d)); err != nil {
		_ = files.Close()
		return nil, err
	}
	return files, nil
}
