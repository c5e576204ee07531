package conformance

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// invalid: a packet that conntrack cannot place is not forwarded to a pod. The packet is a TCP segment without flags,
// which no connection has. A segment with only ACK is forwarded, because its connection may be older than the rules.
func (s suite) invalid(t testing.TB) {
	r := sixRig(t, s)
	report(t, r.sync(tableOf()))
	w := &scenario.World
	outside, pod := r.hosts[w.Outside.V4], r.hosts[w.Pod.V4]
	var listener int
	report(t, pod.Do(func() (err error) {
		listener, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	}))
	defer unix.Close(listener)
	send := func(flags byte) {
		t.Helper()
		report(t, outside.Do(func() error { return sendTCP(w.Outside.V4, w.Pod.V4, flags) }))
	}
	const none, ack = 0, 0x10
	send(none)
	send(ack)
	if got := firstFlags(listener, s.patience); got != ack {
		t.Errorf("the pod received a segment with flags %#x first, want %#x alone: an invalid one got through", got, ack)
	}
}

// sendTCP sends one TCP segment with flags, from a raw socket.
func sendTCP(from, to netip.Addr, flags byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	defer unix.Close(fd)
	seg := make([]byte, 20)
	binary.BigEndian.PutUint16(seg[0:], 4711)
	binary.BigEndian.PutUint16(seg[2:], 4712)
	binary.BigEndian.PutUint32(seg[4:], 1000)
	binary.BigEndian.PutUint32(seg[8:], 2000)
	seg[12], seg[13] = 5<<4, flags
	binary.BigEndian.PutUint16(seg[14:], 1024)
	binary.BigEndian.PutUint16(seg[16:], checksum.Transport(from, to, unix.IPPROTO_TCP, seg))
	return unix.Sendto(fd, seg, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// firstFlags returns the flags of the first segment of sendTCP that a raw socket receives, or -1 if none comes.
func firstFlags(fd int, patience time.Duration) int {
	until := time.Now().Add(patience)
	buf := make([]byte, 1500)
	for time.Now().Before(until) {
		tv := unix.NsecToTimeval(time.Until(until).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return -1
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil || n < 40 {
			continue
		}
		seg := buf[int(buf[0]&15)*4:]
		if binary.BigEndian.Uint16(seg) == 4711 && binary.BigEndian.Uint16(seg[2:]) == 4712 {
			return int(seg[13])
		}
	}
	return -1
}
