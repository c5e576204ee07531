package podroutes

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

// DefaultDir has a directory for each node, because nodes of a lab may share a file system.
const DefaultDir = "/run/fairway/bgp"

// The files.
const (
	podCIDRsFile = "podcidrs.json"
	receivedFile = "received.json"
	ownersFile   = "owners.json"
)

// maxSize limits the size of a file in bytes: eight routers with 10,000 prefixes of each family fit.
const maxSize = 32 << 20

// recheck is the period after which a Watch calls changed without a notice.
const recheck = 10 * time.Second

// A Dir is the directory of one node. The zero value has no files: it ignores writes, and reads nothing.
type Dir string

// Of returns the directory of a node below base.
func Of(base, node string) Dir { return Dir(filepath.Join(base, node)) }

// A Route is a route that a router announced.
type Route struct {
	Prefix netip.Prefix `json:"prefix"`
	// NextHop is the next hop of the route. Router is the router's address in its session. Invalid means unknown.
	NextHop netip.Addr `json:"nextHop"`
	Router  netip.Addr `json:"router"`
}

// SetPodCIDRs stores the podCIDRs that the speaker must announce, in this order. Without podCIDRs the speaker need not
// report received routes either.
func (d Dir) SetPodCIDRs(all []netip.Prefix) error {
	if len(all) == 0 {
		return d.remove(podCIDRsFile)
	}
	return d.write(podCIDRsFile, all)
}

// PodCIDRs returns the podCIDRs that the speaker must announce.
func (d Dir) PodCIDRs() (all []netip.Prefix, err error) { return all, d.read(podCIDRsFile, &all) }

// Asked reports whether there is a reader of the received routes: an agent with podCIDRs.
func (d Dir) Asked() (bool, error) {
	all, err := d.PodCIDRs()
	return len(all) > 0, err
}

// SetReceived stores the routes that routers have announced, in this order. Nil removes the file.
func (d Dir) SetReceived(all []Route) error {
	if all == nil {
		return d.remove(receivedFile)
	}
	return d.write(receivedFile, all)
}

// Received returns the routes that the speaker stored last.
func (d Dir) Received() (all []Route, err error) { return all, d.read(receivedFile, &all) }

// ByRouters replaces the name of an owner if routers lead to the address by any node. No Node has such a name, so an
// agent that does not know ByRouters finds no way to the address.
const ByRouters = "!routers"

// SetOwners stores the node that announces each egress address, with which pods leave the cluster. An empty map removes
// the file.
func (d Dir) SetOwners(all map[netip.Addr]string) error {
	if len(all) == 0 {
		return d.remove(ownersFile)
	}
	return d.write(ownersFile, all)
}

// Owners returns the owners that the speaker stored last.
func (d Dir) Owners() (all map[netip.Addr]string, err error) { return all, d.read(ownersFile, &all) }

// Remove removes the directory, and its parent if that is then empty.
func (d Dir) Remove() error {
	if d == "" {
		return nil
	}
	if err := os.RemoveAll(string(d)); err != nil {
		return fmt.Errorf("remove the files of agent and speaker: %w", err)
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
	// There is no fsync, because the directory is in memory and does not survive a crash of the machine.
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

// read does not change the value if there is no file.
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

// Watch calls changed at once, when a file may have changed, and every ten seconds, until ctx ends. It creates the
// directory. Watch calls problem if that fails, or if the kernel sends no notices.
func (d Dir) Watch(ctx context.Context, changed func(), problem func(error)) {
	if d == "" {
		<-ctx.Done()
		return
	}
	files, err := d.notices()
	if err != nil {
		problem(fmt.Errorf("changes in %s are found within %v: %w [raise fs.inotify.max_user_instances?]", d, recheck, err))
		files = &fsnotify.Watcher{} // with nil channels, which never receive
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
