package hostport

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/tabletest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// patience is for what must come: a loaded machine is no failure.
const patience = time.Minute

// rig is a Reader that runs in a namespace of its own.
type rig struct {
	t     *testing.T
	host  *testnet.Host
	store string
	log   strings.Builder
	// tables hears of the tables that other programs change.
	tables nft.Monitor
	*Reader
}

func newRig(t *testing.T) *rig {
	n := testnet.New(t)
	r := &rig{t: t, host: n.Node("node-1"), store: filepath.Join(t.TempDir(), "cni", "node-1")}
	if err := os.MkdirAll(filepath.Dir(r.store), 0o755); err != nil { // the pod's mount
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		ended <- r.host.Do(func() error {
			r.Reader = New(slog.New(slog.NewTextHandler(&r.log, nil)), r.store)
			r.TablesChanged = r.tables.Changed(numbers.TableHostPorts)
			close(ready)
			return r.Run(ctx)
		})
	}()
	<-ready
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// record writes a record as the plugin does.
func (r *rig) record(file string, rec any) {
	r.t.Helper()
	dir := cni.HostPortsDir(r.store)
	text, err := json.Marshal(rec)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "."+file), text, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, "."+file), filepath.Join(dir, file))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// await waits until the Reader has told of something for which f holds.
func (r *rig) await(what string, f func(service.HostPorts) bool) service.HostPorts {
	r.t.Helper()
	late := time.After(patience)
	for !f(r.Now()) {
		select {
		case <-r.Dirty():
		case <-late:
			r.t.Fatalf("%s: there is %+v", what, r.Now())
		}
	}
	return r.Now()
}

// TestReader: the Reader follows the plugin's records from the first on, and the node's
// addresses.
func TestReader(t *testing.T) {
	r := newRig(t)
	web := cni.HostPorts{
		Network: "fairway", Pod: "default/web", UID: "uid-1", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.5")},
		Ports:   []cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 53, ContainerPort: 5353, Protocol: "udp", HostIP: "172.18.0.11"}},
		Created: time.Unix(1000, 0),
	}
	r.record("fw01", web)
	now := r.await("the first record", func(p service.HostPorts) bool { return len(p.Pods) == 1 })
	pod := now.Pods[0]
	want := service.HostPod{
		Name: api.Name{Namespace: "default", Name: "web"}, UID: "uid-1", Created: 1000, Addrs: service.NewAddrSet(web.Addresses...),
		Ports: []service.HostPort{{Proto: api.TCP, Port: 8080, To: 80}, {Proto: api.UDP, Port: 53, To: 5353, Addr: netip.MustParseAddr("172.18.0.11")}},
	}
	if !pod.Equal(&want) {
		t.Errorf("read %+v, want %+v", pod, want)
	}
	if uid, none := r.UID(want.Name), r.UID(api.Name{Name: "none"}); uid != "uid-1" || none != "" {
		t.Errorf("the UID is %q, of a pod without ports %q", uid, none)
	}
	own := netip.MustParseAddr("172.18.0.11")
	if !now.Addrs.Has(own) || now.Addrs.Has(netip.MustParseAddr("127.0.0.1")) || now.Addrs.Has(netip.MustParseAddr("::1")) {
		t.Errorf("the node's addresses: %v, want %v and no loopback address", now.Addrs, own)
	}

	// A pod that is made again has a record beside the one of the pod before: the newer counts.
	again := web
	again.Created, again.Ports = web.Created.Add(time.Hour), web.Ports[:1]
	r.record("fw02", again)
	r.await("the newer record", func(p service.HostPorts) bool { return len(p.Pods) == 1 && len(p.Pods[0].Ports) == 1 })

	r.record("fw03", "no record at all")
	other := web
	other.Pod = "default/other"
	r.record("fw04", other)
	r.await("a record beside a broken one", func(p service.HostPorts) bool { return len(p.Pods) == 2 })

	added := netip.MustParseAddr("192.0.2.77")
	r.host.AddAddr(added)
	r.await("another address", func(p service.HostPorts) bool { return p.Addrs.Has(added) })

	for _, file := range []string{"fw01", "fw02", "fw03", "fw04"} {
		if err := os.Remove(filepath.Join(cni.HostPortsDir(r.store), file)); err != nil {
			t.Fatal(err)
		}
	}
	r.await("the end", func(p service.HostPorts) bool { return len(p.Pods) == 0 })
}

// TestFlush: the table of host ports that another program removes is there again within a second, without a timer.
func TestFlush(t *testing.T) {
	was := recheck
	t.Cleanup(func() { recheck = was })
	recheck = time.Hour
	r := newRig(t)
	r.record("fw01", cni.HostPorts{
		Network: "fairway", Pod: "default/web", UID: "uid-1", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.5")},
		Ports: []cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}, Created: time.Unix(1000, 0),
	})
	tabletest.Start(t, r.host.Do, &r.tables)
	tabletest.Flush(t, r.host.Do, numbers.TableHostPorts)
}
