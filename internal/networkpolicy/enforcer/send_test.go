package enforcer

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// sendFrom sends one datagram from an address that need not be the host's own.
func sendFrom(from netip.Addr, to netip.AddrPort, text string) error {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
		if failed != nil {
			return failed
		}
		return err
	}}
	c, err := config.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(from, 0).String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.WriteTo([]byte(text), net.UDPAddrFromAddrPort(to))
	return err
}
