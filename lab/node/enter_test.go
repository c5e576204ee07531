package node

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListens: a socket has a file once it is bound, but accepts connections only when its server listens.
func TestListens(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if err := Listens(t.Context(), socket); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without a file: %v", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: socket})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := Listens(t.Context(), socket); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("bound: %v", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	if err := Listens(t.Context(), socket); err != nil {
		t.Errorf("listening: %v", err)
	}
}
