package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// TestUsableAtOnce: when ADD has ended, the pod can use its addresses.
func TestUsableAtOnce(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	for range 5 {
		p := newPod(t)
		n.mustAdd(list, p)
		for _, addr := range p.addrs {
			if out := p.run("ip route get " + addr.String()); !strings.Contains(out, "local") {
				t.Errorf("%s is not the pod's own yet: %s", addr, out)
			}
		}
	}
}

// TestGCBesideAdd: GC that lists every pod, also those whose ADD has not ended, takes nothing
// from them; and what ADD and DEL did meanwhile is whole.
func TestGCBesideAdd(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	const count = 12
	pods, errs := make([]*pod, count), make([]error, count)
	valid := &libcni.GCArgs{}
	for i := range pods {
		pods[i] = newPod(t)
		valid.ValidAttachments = append(valid.ValidAttachments, types.GCAttachment{ContainerID: pods[i].rt.ContainerID, IfName: "eth0"})
	}
	ended := make(chan struct{})
	collected := make(chan error, 1)
	go func() {
		var err error
		for times := 0; err == nil; times++ {
			err = n.do(func() error { return n.runtime.GCNetworkList(context.Background(), list, valid) })
			select {
			case <-ended:
				collected <- err
				return
			default:
			}
		}
		collected <- err
	}()
	var group sync.WaitGroup
	for i, p := range pods {
		group.Go(func() {
			if _, errs[i] = n.add(list, p); errs[i] == nil && i%2 == 0 { // made again meanwhile
				if errs[i] = n.del(list, p); errs[i] == nil {
					_, errs[i] = n.add(list, p)
				}
			}
		})
	}
	group.Wait()
	close(ended)
	if err := <-collected; err != nil {
		t.Errorf("GC: %v", err)
	}
	seen := map[netip.Addr]bool{}
	for i, p := range pods {
		if errs[i] == nil {
			errs[i] = n.check(list, p)
		}
		if errs[i] != nil {
			t.Errorf("pod %d: %v", i, errs[i])
		}
		for _, addr := range p.addrs {
			if seen[addr] {
				t.Errorf("%s was given twice", addr)
			}
			seen[addr] = true
		}
	}
	if err := n.do(func() error { return n.runtime.GCNetworkList(context.Background(), list, &libcni.GCArgs{}) }); err != nil {
		t.Errorf("GC of all: %v", err)
	}
	if left := n.left(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// onSmallDisk runs fn on a thread that alone sees a file system of some bytes and files at
// the store's place, which is gone with the thread.
func (n *node) onSmallDisk(options string, fn func() error) {
	n.t.Helper()
	if err := os.MkdirAll(n.stateDir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	err := n.do(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare mounts: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("tmpfs", n.stateDir, "tmpfs", 0, options); err != nil {
			return fmt.Errorf("mount a small disk: %w", err)
		}
		return fn()
	})
	if err != nil {
		n.t.Error(err)
	}
}

// TestFullDisk: where the store has no room, for files or for bytes, ADD says so and leaves
// nothing; DEL and GC work all the same, and ADD too once there is room.
func TestFullDisk(t *testing.T) {
	for inodes := 2; inodes <= 6; inodes++ { // room for the directory, the lock, an address, …
		n := newNode(t)
		n.full(fmt.Sprintf("nr_inodes=%d", inodes), inodes, nil)
	}
	n := newNode(t)
	n.full("size=4k", 0, func() error { // one page, and the first file takes it
		return os.WriteFile(filepath.Join(n.stateDir, "hog"), make([]byte, 4096), 0o600)
	})
}

// full runs ADD on a small disk that fill has filled.
func (n *node) full(options string, inodes int, fill func() error) {
	n.t.Helper()
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:244:1::/64"}]]}}`, n.stateDir)
	p := newPod(n.t)
	n.onSmallDisk(options, func() error {
		if fill != nil {
			if err := fill(); err != nil {
				return err
			}
		}
		out, err := n.command("ADD", conf, p).Output()
		if err == nil || !strings.Contains(string(out), "no space left on device") {
			n.t.Errorf("%s: ADD on a full disk: %v: %s", options, err, out)
		}
		if files, _ := filepath.Glob(filepath.Join(n.stateDir, "fairway", "*[.:]*")); len(files) > 0 && !strings.Contains(files[0], "last_reserved") {
			n.t.Errorf("%s: ADD left %v", options, files)
		}
		for _, verb := range []string{"DEL", "GC"} {
			stdin := conf
			if verb == "GC" {
				stdin = conf[:len(conf)-1] + `,"cni.dev/valid-attachments":[]}`
			}
			if out, err := n.command(verb, stdin, p).Output(); err != nil && inodes > 3 {
				n.t.Errorf("%s: %s on a full disk: %v: %s", options, verb, err, out)
			}
		}
		os.Remove(filepath.Join(n.stateDir, "hog"))
		if err := unix.Mount("", n.stateDir, "", unix.MS_REMOUNT, "nr_inodes=100,size=1m"); err != nil {
			return err
		}
		if out, err := n.command("ADD", conf, p).Output(); err != nil {
			n.t.Errorf("%s: ADD with room: %v: %s", options, err, out)
		}
		if out, err := n.command("DEL", conf, p).Output(); err != nil {
			n.t.Errorf("%s: DEL: %v: %s", options, err, out)
		}
		return nil
	})
	if left := n.left(); left != "" {
		n.t.Errorf("%s: left behind:\n%s", options, left)
	}
}

// TestNoDescriptors: a plugin that may open few files fails or works, and leaves nothing
// that DEL does not find.
func TestNoDescriptors(t *testing.T) {
	n := newNode(t)
	conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}]]}}`, n.stateDir)
	failed, worked := 0, 0
	for limit := 4; limit <= 20; limit++ {
		p := newPod(t)
		cmd := n.command("ADD", conf, p)
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s", limit, cmd.Path)}
		err := n.do(func() error { _, err := cmd.Output(); return err })
		if err == nil {
			worked++
		} else if failed++; n.left() != "" {
			t.Errorf("ADD with %d descriptors left behind:\n%s", limit, n.left())
		}
		if _, err := n.call("DEL", conf, p); err != nil {
			t.Errorf("DEL after ADD with %d descriptors: %v", limit, err)
		}
		if left := n.left(); left != "" {
			t.Fatalf("with %d descriptors: left behind:\n%s", limit, left)
		}
		p.close()
	}
	if failed == 0 || worked == 0 {
		t.Errorf("%d failed, %d worked: the limits are not where it breaks", failed, worked)
	}
}

// TestLostStore: when the store is lost or damaged while pods run, no pod gets another's address,
// those that run go on, and everything can be removed.
func TestLostStore(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	var pods []*pod
	for range 3 {
		pods = append(pods, newPod(t))
		n.mustAdd(list, pods[len(pods)-1])
	}
	store := filepath.Join(n.stateDir, "fairway")
	for name, damage := range map[string]func() error{
		"lost": func() error { return os.RemoveAll(n.stateDir) },
		"half: files of pods that are gone, empty ones, others' text, and no note of the last address": func() error {
			err := os.Remove(filepath.Join(store, "last_reserved_ip.0"))
			for name, text := range map[string]string{"10.244.1.40": "gone\r\neth0", "10.244.1.41": "", "10.244.1.42": "\x00\xff", "last_reserved_ip.1": "nonsense", "fd00:10:244:1::40": "gone\r\neth0"} {
				if err == nil {
					err = os.WriteFile(filepath.Join(store, name), []byte(text), 0o600)
				}
			}
			return err
		},
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		p := newPod(t)
		_, err := n.add(list, p)
		for try := 0; err != nil && try <= len(pods); try++ { // a runtime tries again
			wantCode(t, err, types.ErrTryAgainLater, "routed to another link already")
			_, err = n.add(list, p)
		}
		if err != nil {
			t.Fatalf("store %s: ADD: %v", name, err)
		}
		for _, other := range pods {
			for i, addr := range other.addrs {
				if addr == p.addrs[i] {
					t.Errorf("store %s: %s was given twice", name, addr)
				}
				n.run("ping -c1 -W30 " + addr.String())
			}
		}
		pods = append(pods, p)
	}
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: pods[4].rt.ContainerID, IfName: "eth0"}}}
	if err := n.do(func() error { return n.runtime.GCNetworkList(context.Background(), list, valid) }); err != nil {
		t.Fatalf("GC: %v", err)
	}
	if err := n.check(list, pods[4]); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := n.del(list, pods[4]); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if left := n.left(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestSameAddAtOnce: of ADDs of one container at once one succeeds, and keeps its addresses; the others take nothing from it.
func TestSameAddAtOnce(t *testing.T) {
	n := newNode(t)
	list := n.list("1.1.0", "fairway", "10.244.1.0/24", "fd00:10:244:1::/64")
	const rounds, count = 10, 4
	for range rounds {
		p := newPod(t)
		tries, errs := make([]pod, count), make([]error, count)
		var group sync.WaitGroup
		for i := range tries {
			tries[i] = *p
			group.Go(func() { _, errs[i] = n.add(list, &tries[i]) })
		}
		group.Wait()
		done := 0
		for i, err := range errs {
			if err == nil {
				done++
				p.addrs = tries[i].addrs
			} else {
				wantCode(t, err, types.ErrTryAgainLater, "")
			}
		}
		if done != 1 {
			t.Fatalf("%d ADDs succeeded: %v", done, errs)
		}
		if err := n.check(list, p); err != nil {
			t.Errorf("CHECK of the one that succeeded: %v; the others: %v", err, errs)
		}
		if err := n.del(list, p); err != nil {
			t.Error(err)
		}
	}
	if left := n.left(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
