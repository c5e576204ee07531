package ebpf_test

import (
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fairway-net/fairway/internal/datapath"
)

// TestLease: without an agent the programs stop choosing, because a mode without the right to detach them may have
// taken over. The next agent makes them choose again.
func TestLease(t *testing.T) {
	r := newRig(t)
	r.sync(r.front(web.String()))
	all, err := filepath.Glob(filepath.Join(bpffs(t, r.cgroup), "fairway", "*", "settings"))
	if err != nil || len(all) != 1 {
		t.Fatalf("the pinned settings are %v: %v", all, err)
	}
	settings, err := ebpf.LoadPinnedMap(all[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer settings.Close()
	value, err := settings.LookupBytes(uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	binary.NativeEndian.PutUint64(value[8:], 1) // a moment after the machine started
	if err := settings.Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
	intact := func() {
		t.Helper()
		r.do(func() error {
			drift, err := r.dp.Check(context.Background())
			if drift.Any() {
				t.Errorf("drift: %+v", drift)
			}
			return err
		})
	}
	web := dial(web)
	if err := r.client.Do(func() error {
		c, err := web(&net.Dialer{Timeout: time.Second})
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		t.Errorf("nf_tables does not serve: %v", err)
	}
	intact() // renews
	r.onlyConnectTime()
	r.translated("with a renewed lease", true, r.client, web)
	if err := settings.Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
	r.translated("after the lease", false, r.client, web)
	r.reopen()
	r.sync(r.front("10.96.0.9:80"))
	r.sync(r.front("10.96.0.1:80"))
	r.onlyConnectTime()
	r.translated("with another agent", true, r.client, web)
}

// TestExplain: Explain counts the sockets that got an endpoint, also in a process without the programs (fairway dump).
func TestExplain(t *testing.T) {
	r := newRig(t)
	f := r.front(web.String())
	r.sync(f)
	for range 3 {
		r.translated("a pod", true, r.client, dial(web))
	}
	for _, name := range []string{"the agent", "another process"} {
		var all []datapath.Object
		r.do(func() (err error) { all, err = r.dp.Explain(context.Background(), f.Key()); return err })
		if at := all[len(all)-1]; !strings.HasSuffix(at.Text, "2 slots for the node and pods, 3 sockets translated") || filepath.Base(at.Name) != "fronts" {
			t.Errorf("%s: %+v", name, at)
		}
		r.reopen()
	}
}
