package ebpf_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/ebpf"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func TestConformance(t *testing.T) { conformance.Run(t, open) }

// TestSwitch switches between this mode and nftables, under load.
func TestSwitch(t *testing.T) {
	conformance.Switch(t, map[string]conformance.Open{
		"ebpf": open,
		"nftables": func(t testing.TB) conformance.Datapath {
			dp, err := nftables.New(nftables.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return dp
		},
	})
}

// open returns a datapath that Place completes.
func open(t testing.TB) conformance.Datapath {
	p := &placed{t: t}
	p.new(ebpf.Config{})
	return p
}

// placed is a datapath below a cgroup of a test.
type placed struct {
	*ebpf.Datapath
	t testing.TB
}

// Place implements conformance.Placed. Each cgroup has its own pins, which a restart finds again.
func (p *placed) Place(cgroup string) {
	p.new(ebpf.Config{Cgroup: cgroup, Pins: filepath.Join(bpffs(p.t, cgroup), "fairway"), Log: slog.New(slog.NewTextHandler(failing{p.t}, nil))})
}

func (p *placed) new(cfg ebpf.Config) {
	dp, err := ebpf.New(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.Datapath = dp
}

// failing fails the test with each message.
type failing struct{ testing.TB }

func (f failing) Write(text []byte) (int, error) {
	f.Errorf("%s", text)
	return len(text), nil
}

// mounts has the bpffs of each cgroup.
var mounts sync.Map

// bpffs returns a cgroup's bpffs. It has no mount point, and ends with the test or the process.
func bpffs(t testing.TB, cgroup string) string {
	t.Helper()
	if path, ok := mounts.Load(cgroup); ok {
		return path.(string)
	}
	fd, err := mountBPF()
	if err != nil {
		t.Fatalf("make a bpffs: %v", err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	mounts.Store(cgroup, path)
	t.Cleanup(func() { mounts.Delete(cgroup); unix.Close(fd) })
	return path
}

func mountBPF() (int, error) {
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}
