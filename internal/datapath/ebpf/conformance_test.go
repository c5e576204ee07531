package ebpf_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/ebpf"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func TestConformance(t *testing.T) { conformance.Run(t, open) }

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
	p.new(ebpf.Config{Cgroup: cgroup, Pins: filepath.Join(bpffs(p.t), filepath.Base(cgroup)), Log: slog.New(slog.NewTextHandler(failing{p.t}, nil))})
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

// bpffs returns a bpffs without a mount point, which ends with the process.
func bpffs(t testing.TB) string {
	t.Helper()
	fd, err := mountBPF()
	if err != nil {
		t.Fatalf("make a bpffs: %v", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd)
}

var mountBPF = sync.OnceValues(func() (int, error) {
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
})
