package fabric

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Stderr.WriteString("these tests make network namespaces: run them as root\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestFabric sends packets from the outside client to a node and back, in both
// families, and from node to node.
func TestFabric(t *testing.T) {
	before := links(t)
	f := Fabric{Dir: t.TempDir()}
	t.Cleanup(func() {
		if err := f.Delete(); err != nil {
			t.Error(err)
		}
	})
	plan := Plan{Family: Dual}
	if err := f.Create(plan, 2); err != nil {
		t.Fatal(err)
	}
	if now := links(t); now != before {
		t.Errorf("links outside of the fabric are\n%s\nwere\n%s", now, before)
	}
	for _, to := range append(plan.Node(2), plan.ControlPlane()...) {
		echo(t, f, Client, to.Addr())
		echo(t, f, NodeName(1), to.Addr())
	}
	inodes, err := f.Inodes()
	if err != nil || len(inodes) != 5 {
		t.Errorf("namespaces are %v, %v; want 5", inodes, err)
	}
	if err := f.Delete(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(f.Dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := f.Delete(); err != nil {
		t.Errorf("a second Delete: %v", err)
	}
}

// TestRoute sends packets to an address behind a node.
func TestRoute(t *testing.T) {
	f := Fabric{Dir: t.TempDir()}
	t.Cleanup(func() {
		if err := f.Delete(); err != nil {
			t.Error(err)
		}
	})
	plan := Plan{Family: IPv4}
	if err := f.Create(plan, 1); err != nil {
		t.Fatal(err)
	}
	pod := netip.MustParsePrefix("10.244.0.1/32")
	err := f.Do(NodeName(1), func() error { return exec.Command("ip", "address", "add", pod.String(), "dev", "lo").Run() })
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Route(ControlPlane, pod, plan.Node(1)[0].Addr()); err != nil {
		t.Fatal(err)
	}
	echo(t, f, ControlPlane, pod.Addr())
}

// echo has a packet sent to addr, where a closed port refuses it: it arrived, and the answer came back.
func echo(t *testing.T, f Fabric, from string, addr netip.Addr) {
	t.Helper()
	err := f.Do(from, func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, 9).String(), 3*time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("from %s to %s: %v, want that it is refused there", from, addr, err)
	}
}

func links(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("ip", "-o", "link").CombinedOutput()
	if err != nil {
		t.Fatalf("ip link: %v\n%s", err, out)
	}
	return string(out)
}
