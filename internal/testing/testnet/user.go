package testnet

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is the user of AsNobody.
const nobody = 65534

// AsNobody calls f as a user without any right. Sockets that f opens are this user's. Only the calling thread changes
// its user.
func AsNobody(t testing.TB, f func()) {
	t.Helper()
	NeedRoot(t, "becomes another user")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(user uintptr) {
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), user, ^uintptr(0)); err != 0 {
			t.Fatalf("become user %d: %v", user, err)
		}
	}
	become(nobody)
	defer become(0)
	f()
}
