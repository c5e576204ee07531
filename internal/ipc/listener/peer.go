package listener

import (
	"net"
	"syscall"
)

// Peer returns the process at the other end of a Unix socket; user 65534 if it is unknown.
func Peer(c net.Conn) syscall.Ucred {
	const nobody = 65534
	who := syscall.Ucred{Uid: nobody}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return who
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return who
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			who = *cred
		}
	})
	return who
}
