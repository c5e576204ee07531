package testnet

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// Flood sends a SYN from each of n addresses of 198.18.0.0/15, which no host has.
func (h *Host) Flood(to netip.AddrPort, many int) {
	h.t.Helper()
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range many {
			source := netip.AddrFrom4([4]byte{198, byte(18 + i>>16), byte(i >> 8), byte(i)})
			if err := unix.Sendto(fd, syn(source, to), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// syn returns a SYN with its IPv4 header.
func syn(from netip.Addr, to netip.AddrPort) []byte {
	tcp := binary.BigEndian.AppendUint16(nil, 40000)
	tcp = binary.BigEndian.AppendUint16(tcp, to.Port())
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 2, 0xff, 0xff, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(tcp[16:], checksum.Transport(from, to.Addr(), unix.IPPROTO_TCP, tcp))
	ip := append([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}, from.AsSlice()...)
	return append(append(ip, to.Addr().AsSlice()...), tcp...)
}
