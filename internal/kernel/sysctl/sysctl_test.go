package sysctl

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// TestWriteFile writes like an unprivileged container: /proc/sys is read-only, and the host's /proc/sys/net is mounted
// at Host, or not at all.
func TestWriteFile(t *testing.T) {
	testnet.NeedRoot(t, "mounts /proc/sys read-only")
	root := t.TempDir()
	result := make(chan error)
	go func() { result <- inContainer(t, root) }() // its thread ends with it
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

const parameter = "ipv4/ip_default_ttl"

func inContainer(t *testing.T, root string) error {
	if err := isolate(); err != nil {
		return err
	}
	plain, host := filepath.Join(root, "proc/sys"), filepath.Join(root, Host)
	for _, dir := range []string{plain, filepath.Dir(host)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("/proc/sys", plain, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	path := root + below + parameter
	check := func(what, write, want string, wantErr error) {
		t.Helper()
		if err := WriteFile(path, write); !errors.Is(err, wantErr) || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want %v", what, err, wantErr)
		}
		if now, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(now)) != want {
			t.Errorf("%s: the parameter is %q, %v, want %s", what, now, err, want)
		}
	}
	check("writable", "61", "61", nil)
	if err := unix.Mount("", plain, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	check("read-only", "62", "61", syscall.EROFS)
	if err := os.Mkdir(host, 0o755); err != nil {
		return err
	}
	check("an empty directory", "62", "61", syscall.EROFS)
	if err := unix.Mount("/proc/sys/net", host, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	check("the host's is mounted", "63", "63", nil)
	return nil
}

// isolate gives the calling thread its own mounts and its own network.
func isolate() error {
	runtime.LockOSThread() // and never unlock it
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}
