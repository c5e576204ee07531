package testnet

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Tape records the MAC addresses that claim some addresses on a network, by ARP or neighbour advertisements.
type Tape struct {
	addrs []netip.Addr

	mu     sync.Mutex
	claims []addrClaim
}

type addrClaim struct {
	at   time.Time // the kernel's time stamp
	addr netip.Addr
	mac  [6]byte
}

// Record listens on all interfaces of a namespace until the test ends.
func Record(t testing.TB, ns *Namespace, addrs ...netip.Addr) *Tape {
	tp := &Tape{addrs: addrs}
	var fd int
	err := ns.Do(func() (err error) {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		}
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
		}
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		}
		return err
	})
	if err != nil {
		t.Fatalf("listen to ARP: %v", err)
	}
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() { tp.run(fd, stop) })
	t.Cleanup(func() { close(stop); done.Wait(); unix.Close(fd) })
	return tp
}

func (tp *Tape) run(fd int, stop chan struct{}) {
	buf, oob := make([]byte, 2048), make([]byte, 256)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, o, _, _, err := unix.Recvmsg(fd, buf, oob, 0)
		if err != nil {
			continue
		}
		s, ok := parseClaim(buf[:n])
		if !ok || !slices.Contains(tp.addrs, s.addr) {
			continue
		}
		s.at = time.Now()
		if all, err := unix.ParseSocketControlMessage(oob[:o]); err == nil && len(all) > 0 && len(all[0].Data) >= 16 {
			ts := *(*unix.Timespec)(unsafe.Pointer(&all[0].Data[0]))
			s.at = time.Unix(ts.Unix())
		}
		tp.mu.Lock()
		tp.claims = append(tp.claims, s)
		tp.mu.Unlock()
	}
}

// parseClaim parses a frame that claims an address: ARP with the address as sender, or a neighbour advertisement.
func parseClaim(b []byte) (s addrClaim, ok bool) {
	switch {
	case len(b) >= 42 && b[12] == 8 && b[13] == 6:
		s.addr = netip.AddrFrom4([4]byte(b[28:32]))
		copy(s.mac[:], b[22:28])
		return s, true
	case len(b) >= 78 && b[12] == 0x86 && b[13] == 0xdd && b[20] == 58 && b[54] == 136:
		s.addr = netip.AddrFrom16([16]byte(b[62:78]))
		copy(s.mac[:], b[6:12])
		return s, true
	}
	return s, false
}

// Interleaved is the time in which alternate frames of two nodes mean that both had the address. A new owner keeps an
// address for longer.
const Interleaved = 400 * time.Millisecond

// Frames returns the number of frames that claimed one of the addresses.
func (tp *Tape) Frames() int {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return len(tp.claims)
}

// Last returns the MAC address that claimed an address last, or nil.
func (tp *Tape) Last(a netip.Addr) net.HardwareAddr {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	for _, s := range slices.Backward(tp.claims) {
		if s.addr == a {
			return s.mac[:]
		}
	}
	return nil
}

// Check fails the test if two MACs had an address at one time: one MAC sent a frame between two frames of the other
// that follow each other closely. It returns the number of changes of the owner.
func (tp *Tape) Check(t testing.TB) (changes int) {
	t.Helper()
	tp.mu.Lock()
	defer tp.mu.Unlock()
	for _, a := range tp.addrs {
		var all []addrClaim
		for _, s := range tp.claims {
			if s.addr == a {
				all = append(all, s)
			}
		}
		slices.SortStableFunc(all, func(x, y addrClaim) int { return x.at.Compare(y.at) })
		last := map[[6]byte]time.Time{}
		for i, s := range all {
			if i > 0 && s.mac != all[i-1].mac {
				changes++
				if before, ok := last[s.mac]; ok && s.at.Sub(before) < Interleaved {
					t.Errorf("%v: %x said it had it %v after it said so before, and %x in between", a, s.mac, s.at.Sub(before), all[i-1].mac)
				}
			}
			last[s.mac] = s.at
		}
	}
	return changes
}
