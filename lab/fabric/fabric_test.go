package fabric

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Stderr.WriteString("these tests make network namespaces: run them as root\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestFabric sends packets from the outside client to a node and back, and from node to node, in both families.
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

// TestRouter sends packets from a client behind the router to a node and back. It checks that only the router has the
// route to the client.
func TestRouter(t *testing.T) {
	f := Fabric{Dir: t.TempDir()}
	t.Cleanup(func() {
		if err := f.Delete(); err != nil {
			t.Error(err)
		}
	})
	plan := Plan{Family: Dual, Front: Router}
	if err := f.Create(plan, 1); err != nil {
		t.Fatal(err)
	}
	for _, to := range plan.Node(1) {
		echo(t, f, Client, to.Addr())
	}
	if port, err := f.Port(Client); err != nil || port != NoPort {
		t.Errorf("the client's link on the switch is %s, %v; want it on the router", port, err)
	}
}

// TestRefused sends more queries to the fabric's name server than a kernel answers by default. No server listens there,
// and the fabric must refuse every query, so that DNS need not wait.
func TestRefused(t *testing.T) {
	f := Fabric{Dir: t.TempDir()}
	t.Cleanup(func() {
		if err := f.Delete(); err != nil {
			t.Error(err)
		}
	})
	plan := Plan{Family: Dual}
	if err := f.Create(plan, 1); err != nil {
		t.Fatal(err)
	}
	for _, server := range plan.Gateway() {
		for i := range 100 {
			err := f.Do(NodeName(1), func() error {
				conn, err := net.Dial("udp", netip.AddrPortFrom(server.Addr(), 53).String())
				if err != nil {
					return err
				}
				defer conn.Close()
				if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
					return err
				}
				if _, err := conn.Write([]byte("question")); err != nil {
					return err
				}
				_, err = conn.Read(make([]byte, 1))
				return err
			})
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("question %d to %s: %v, want that it is refused", i, server, err)
			}
		}
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

// echo sends a packet to a closed port of addr. The refusal shows that the packet arrived and that the answer came
// back. It retries, because the switch may still resolve the link address after a cut. A resolution that runs out of
// probes fails together with the packets that wait for it.
func echo(t *testing.T, f Fabric, from string, addr netip.Addr) {
	t.Helper()
	for _, name := range []string{from, Switch} {
		err := f.Do(name, func() error {
			return exec.Command("ip", "neighbour", "flush", "to", addr.String(), "nud", "all").Run()
		})
		if err != nil {
			t.Fatalf("flush the neighbours of %s: %v", name, err)
		}
	}
	err := f.Do(from, func() error {
		// The kernel accepts packets to a new IPv6 address only after work that waits for RTNL. A process that removes
		// namespaces holds RTNL for seconds. TCP repeats an early SYN after 1, 3 and 7 s.
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, 9).String(), 20*time.Second)
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

// TestCut cuts a node off in each way, and pulls its plug.
func TestCut(t *testing.T) {
	f := Fabric{Dir: t.TempDir()}
	t.Cleanup(func() {
		if err := f.Delete(); err != nil {
			t.Error(err)
		}
	})
	plan := Plan{Family: Dual}
	if err := f.Create(plan, 3); err != nil {
		t.Fatal(err)
	}
	one, two, three := NodeName(1), NodeName(2), NodeName(3)
	reach := func(from, to string, n int, want bool) {
		t.Helper()
		for _, addr := range plan.Node(n) {
			if want {
				echo(t, f, from, addr.Addr())
			} else {
				silent(t, f, from, addr.Addr())
			}
		}
	}
	check := func(err error, is bool) {
		t.Helper()
		cut, err2 := f.IsCut(two)
		if err != nil || err2 != nil || cut != is {
			t.Fatalf("%v; cut is %v, %v; want %v", err, cut, err2, is)
		}
	}
	for _, direction := range []string{Both, In, Out} {
		check(f.Cut(two, direction), true)
		reach(one, two, 2, false)
		reach(Client, two, 2, false)
		reach(one, three, 3, true)
	}
	for _, direction := range []string{Both, In, Out} {
		check(f.Cut(two, direction, three, ControlPlane), true)
		reach(three, two, 2, false)
		reach(ControlPlane, two, 2, false)
		reach(one, two, 2, true)
		reach(Client, two, 2, true)
	}
	check(f.Mend(two), false)
	check(f.Mend(two), false)
	reach(three, two, 2, true)
	mac, err := f.mac(two)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		do   func() error
		want Port
	}{
		{func() error { return f.SetLink(two, false) }, PortDown},
		{func() error { return f.SetLink(two, true) }, PortUp},
		{func() error { return errors.Join(f.PullPlug(two), f.PullPlug(two)) }, NoPort},
		{func() error { return errors.Join(f.Release(two), f.Release(two), f.PlugNode(plan, 2)) }, PortUp},
	} {
		err := step.do()
		if port, err2 := f.Port(two); err != nil || err2 != nil || port != step.want {
			t.Fatalf("%v; the link is %q, %v; want %q", err, port, err2, step.want)
		}
	}
	if again, err := f.mac(two); err != nil || again != mac {
		t.Errorf("the link address was %s and is %s, %v", mac, again, err)
	}
	reach(one, two, 2, true)
}

// silent sends a packet to addr and expects no answer.
func silent(t *testing.T, f Fabric, from string, addr netip.Addr) {
	t.Helper()
	err := f.Do(from, func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, 9).String(), 30*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("from %s to %s: %v, want silence", from, addr, err)
	}
}
