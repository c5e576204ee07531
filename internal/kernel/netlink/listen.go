package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Listen opens a socket that gets the notifications of a multicast group, in the network namespace of the thread. Each
// Read returns whole messages. It fails with unix.ENOBUFS if the socket has lost notifications, because nobody read them
// in time. Close ends a Read.
func Listen(protocol, group int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group))
	if err != nil {
		return nil, fmt.Errorf("join netlink group %d: %w", group, errors.Join(err, unix.Close(fd)))
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// Messages calls f for each message in b, with its type and its body.
func Messages(b []byte, f func(typ uint16, body []byte) error) error {
	for len(b) >= messageHeader {
		size, typ := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:])
		if size < messageHeader || size > len(b) {
			return fmt.Errorf("message of %d bytes in %d", size, len(b))
		}
		if err := f(typ, b[messageHeader:size:size]); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// Read reads from a socket of Listen. Unlike the file's own Read, it returns waiting notifications also after the file's
// deadline: on a busy machine the reader may come late.
func Read(file *os.File, buf []byte) (int, error) {
	n, err := file.Read(buf)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	raw, failed := file.SyscallConn()
	if failed != nil {
		return 0, failed
	}
	late := err
	failed = raw.Control(func(fd uintptr) {
		if n, err = unix.Read(int(fd), buf); errors.Is(err, unix.EAGAIN) {
			n, err = 0, late
		}
	})
	return n, errors.Join(failed, err)
}
