package fence

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) {
	if os.Getenv("FENCE_HELPER") != "" {
		helper()
		return
	}
	testnet.Main(m)
}

const grant = 500 * time.Millisecond

var (
	vip4 = netip.MustParseAddr("172.18.0.200")
	vip6 = netip.MustParseAddr("fd00:172:18::200")
)

// speak sends a gratuitous ARP (or a neighbour advertisement) for the address through an interface, and reports whether
// the kernel let it out.
func speak(fd, ifindex int, a netip.Addr) bool {
	var frame []byte
	proto := uint16(unix.ETH_P_ARP)
	if a.Is4() {
		frame = binary.BigEndian.AppendUint16(nil, 1)
		frame = append(frame, 8, 0, 6, 4, 0, 1)
		ip := a.As4()
		frame = append(frame, 2, 0, 0, 0, 0, 9)
		frame = append(frame, ip[:]...)
		frame = append(frame, make([]byte, 6)...)
		frame = append(frame, ip[:]...)
	} else {
		proto = unix.ETH_P_IPV6
		frame = append(frame, 0x60, 0, 0, 0, 0, 24, 58, 255)
		ip := a.As16()
		frame = append(frame, ip[:]...)
		frame = append(frame, ip[:]...)
		frame = append(frame, 136, 0, 0, 0, 0x20, 0, 0, 0)
		frame = append(frame, ip[:]...)
	}
	err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Protocol: numbers.NetworkOrder(proto), Ifindex: ifindex, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}})
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		panic(err)
	}
	return err == nil
}

func packetSocket(t *testing.T) int {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inNode runs f in a node's namespace.
func inNode(t *testing.T, f func(ifindex int)) {
	n := testnet.New(t)
	node := n.Node("node-1")
	must(t, node.Do(func() error {
		eth0, err := ifindexOf("eth0")
		if err != nil {
			return err
		}
		f(eth0)
		return nil
	}))
}

// TestFence mutes guarded addresses without a grant, and no others. A grant lasts for its time, and the confirmation of
// an old request has no effect.
func TestFence(t *testing.T) {
	inNode(t, func(eth0 int) {
		ctx := t.Context()
		fd := packetSocket(t)
		f, err := Open(ctx, grant)
		must(t, err)
		defer f.Close()
		must(t, f.Devices(ctx, []string{"eth0"}))
		must(t, f.Guard(ctx, []netip.Addr{vip4, vip6}))
		other4, other6 := vip4.Next(), vip6.Next()
		check := func(when string, a netip.Addr, want bool) {
			t.Helper()
			if got := speak(fd, eth0, a); got != want {
				t.Errorf("%s: %v leaves: %v, want %v", when, a, got, want)
			}
		}
		for _, a := range []netip.Addr{vip4, vip6} {
			check("not held", a, false)
			check("not held", other4, true)
			check("not held", other6, true)
			must(t, f.Hold(ctx, []netip.Addr{a}, nil))
			check("held, not granted", a, false)
			asked := time.Now()
			must(t, f.Ticket(t.Context(), 1))
			check("asked for", a, false)
			must(t, f.Confirm(1))
			if !speak(fd, eth0, a) && time.Since(asked) < grant/2 {
				t.Errorf("granted: %v does not leave", a)
			}
			waitUntil(t, func() bool { return !speak(fd, eth0, a) })
			if lasted := time.Since(asked); lasted < grant/2 { // a busy machine makes it longer, never shorter
				t.Errorf("a grant lasted for %v", lasted)
			}
			must(t, f.Confirm(2)) // it has no ticket
			must(t, f.Confirm(1)) // its ticket has ended
			check("confirmed too late", a, false)
			if err := f.Ticket(t.Context(), 1); err == nil && time.Since(f.confirmed[1]) < grant {
				t.Error("a slot is used again while it was just granted")
			}
			granted(t, f, func() bool { return speak(fd, eth0, a) })
			must(t, f.Hold(ctx, nil, []netip.Addr{a}))
			check("given up", a, false)
			waitUntil(t, func() bool { return time.Since(f.confirmed[1]) > grant })
		}
	})
}

// TestReload: after another program has removed the rules, Ticket fails, and Reload restores them with all elements.
func TestReload(t *testing.T) {
	inNode(t, func(eth0 int) {
		ctx := t.Context()
		fd := packetSocket(t)
		f, err := Open(ctx, grant)
		must(t, err)
		defer f.Close()
		must(t, f.Devices(ctx, []string{"eth0"}))
		must(t, f.Guard(ctx, []netip.Addr{vip4, vip6}))
		must(t, f.Hold(ctx, []netip.Addr{vip4, vip6}, nil))
		must(t, Remove(ctx))
		if err := f.Ticket(t.Context(), 0); !errors.Is(err, ErrGone) {
			t.Fatalf("Ticket without rules: %v", err)
		}
		must(t, f.Reload(ctx, []netip.Addr{vip4, vip6}))
		for _, a := range []netip.Addr{vip4, vip6} {
			if speak(fd, eth0, a) {
				t.Errorf("%v leaves without a grant", a)
			}
		}
		granted(t, f, func() bool { return speak(fd, eth0, vip4) && speak(fd, eth0, vip6) })
	})
}

// TestReplaced: another process has made the rules again, as a second speaker of an older version does. They have a
// renewal, but no device and no address. Ticket fails, and Reload restores them.
func TestReplaced(t *testing.T) {
	inNode(t, func(eth0 int) {
		ctx := t.Context()
		fd := packetSocket(t)
		f, err := Open(ctx, grant)
		must(t, err)
		defer f.Close()
		must(t, f.Devices(ctx, []string{"eth0"}))
		must(t, f.Guard(ctx, []netip.Addr{vip4}))
		for name, replace := range map[string]func() error{
			"a second speaker": func() error {
				second, err := Open(ctx, grant)
				if err == nil {
					second.Close()
				}
				return err
			},
			"without forwarding": func() error { return f.table.Run(ctx, forwardRemoval) },
		} {
			must(t, f.Ticket(ctx, 0))
			must(t, replace())
			if err := f.Ticket(ctx, 0); !errors.Is(err, ErrGone) {
				t.Errorf("%s: Ticket: %v", name, err)
			}
			must(t, f.Reload(ctx, nil))
			if speak(fd, eth0, vip4) {
				t.Errorf("%s: %v leaves", name, vip4)
			}
		}
	})
}

// TestMany: ten thousand addresses, of which half are held.
func TestMany(t *testing.T) {
	inNode(t, func(eth0 int) {
		ctx := t.Context()
		f, err := Open(ctx, grant)
		must(t, err)
		defer f.Close()
		must(t, f.Devices(ctx, []string{"eth0"}))
		all := make([]netip.Addr, 10000)
		a4, a6 := netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("fd00::")
		for i := range all {
			if a4, a6 = a4.Next(), a6.Next(); i%2 == 0 {
				all[i] = a4
			} else {
				all[i] = a6
			}
		}
		must(t, f.Guard(ctx, all))
		must(t, f.Hold(ctx, all[:5000], nil))
		must(t, f.Hold(ctx, all[5000:], all[:5000]))
		must(t, f.Guard(ctx, all[5000:]))
		fd := packetSocket(t)
		granted(t, f, func() bool { return speak(fd, eth0, all[0]) && speak(fd, eth0, all[9999]) })
	})
}

// granted asks for grants, slot by slot, until speaks shows that one was in time. A busy machine may sleep through
// several.
func granted(t *testing.T, f *Fence, speaks func() bool) {
	t.Helper()
	slot := 2
	waitUntil(t, func() bool {
		slot = 3 + (slot-2)%(Slots-3)
		if f.Ticket(t.Context(), slot) != nil || f.Confirm(slot) != nil {
			return false
		}
		return speaks()
	})
}

// helper is a process that renews its grant every 100 ms, or as fast as the machine allows.
func helper() {
	ctx := context.Background()
	f, err := Open(ctx, grant)
	if err == nil {
		err = errors.Join(f.Devices(ctx, []string{"eth0"}), f.Guard(ctx, []netip.Addr{vip4, vip6}), f.Hold(ctx, []netip.Addr{vip4, vip6}, nil))
	}
	for slot := 0; err == nil; slot = (slot + 1) % Slots {
		err = errors.Join(f.Ticket(ctx, slot), f.Confirm(slot))
		if slot == 0 {
			fmt.Println("renewed")
		}
		time.Sleep(grant / 5)
	}
	fmt.Println(err)
	os.Exit(1)
}

// TestStopped: a process that renews its grant is stopped, and the kernel mutes the node. When the process goes on, the
// node speaks again.
func TestStopped(t *testing.T) {
	n := testnet.New(t)
	node := n.Node("node-1")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FENCE_HELPER=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, node.Do(cmd.Start))
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "renewed\n" {
		t.Fatal(line, err)
	}
	must(t, node.Do(func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		eth0, err := ifindexOf("eth0")
		must(t, err)
		fd := packetSocket(t)
		both := func(want bool) func() bool {
			return func() bool { return speak(fd, eth0, vip4) == want && speak(fd, eth0, vip6) == want }
		}
		waitUntil(t, both(true))
		must(t, cmd.Process.Signal(unix.SIGSTOP))
		waitUntil(t, both(false))
		for range 20 {
			if !both(false)() {
				t.Error("a stopped node speaks again")
			}
		}
		must(t, cmd.Process.Signal(unix.SIGCONT))
		waitUntil(t, both(true))
		return nil
	}))
}

// waitUntil waits for a condition as long as a busy machine may need.
func waitUntil(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}

func ifindexOf(name string) (int, error) {
	out, err := exec.Command("ip", "-o", "link", "show", name).Output()
	if err != nil {
		return 0, fmt.Errorf("ip: %w", err)
	}
	var i int
	_, err = fmt.Sscanf(string(out), "%d:", &i)
	return i, err
}
