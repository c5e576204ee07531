package testnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFirstErrors: after SendEveryICMPError the first ICMP errors of a host arrive, even when two CPUs send them at
// once. With the kernel's limit for all addresses, about one in forty hosts loses an error.
func TestFirstErrors(t *testing.T) {
	n := New(t)
	n.SendEveryICMPError()
	node := n.Node("node-1")
	for i := range 200 {
		pod := netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%x", 16+i))
		n.Pod(node, fmt.Sprintf("pod-%d", i), pod)
		for i, err := range askAtOnce(t, node, netip.AddrPortFrom(pod, 9)) {
			if !os.IsTimeout(err) {
				continue
			}
			t.Fatalf("client %d of %v heard nothing: %v", i, pod, err)
		}
	}
}

// askAtOnce sends UDP from two CPUs, and returns the clients' errors.
func askAtOnce(t *testing.T, from *Host, to netip.AddrPort) (errs [2]error) {
	var ready atomic.Int32
	var all sync.WaitGroup
	for i := range errs {
		var conn net.Conn
		err := from.Do(func() (err error) {
			conn, err = net.Dial("udp", to.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer conn.Close()
			runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
			var cpu unix.CPUSet
			cpu.Set(i % runtime.NumCPU())
			_ = unix.SchedSetaffinity(0, &cpu)
			ready.Add(1)
			for ready.Load() < int32(len(errs)) { // a busy wait, because a sleeping thread would be late
			}
			if _, errs[i] = conn.Write([]byte("?")); errs[i] != nil {
				return
			}
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, errs[i] = conn.Read(make([]byte, 1))
		})
	}
	all.Wait()
	return errs
}
