package testnet

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reset ends a connection of TCP by a reset, and closes it. Its port can be drawn at once for the same destination: after Close
// it cannot while a program that another test starts has a copy of the socket, as each has until it has begun.
func (c *Conn) Reset() error {
	tcp, ok := c.conn.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("reset a connection of %T", c.conn)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		to := unix.RawSockaddr{Family: unix.AF_UNSPEC} // connect(2): dissolves the association
		if _, _, errno := syscall.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to)); errno != 0 {
			failed = fmt.Errorf("reset a connection: %w", errno)
		}
	})
	c.Close()
	return errors.Join(err, failed)
}
