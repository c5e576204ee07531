package nft

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestSupported: if the kernel refuses netfilter sockets, Supported returns false without an error. This kernel has
// nf_tables.
func TestSupported(t *testing.T) {
	testnet.NeedRoot(t, "nf_tables")
	var here Reader
	defer here.Close()
	if able, err := here.Supported(t.Context()); err != nil || !able {
		t.Errorf("this kernel: %v, %v", able, err)
	}
	type answer struct {
		able bool
		err  error
	}
	answers := make(chan answer)
	go func() {
		if err := onThreadWithoutNetfilter(); err != nil {
			answers <- answer{err: err}
			return
		}
		var r Reader
		defer r.Close()
		able, err := r.Supported(t.Context())
		answers <- answer{able, err}
	}()
	if a := <-answers; a.err != nil || a.able {
		t.Errorf("a kernel without nf_tables: %v, %v", a.able, a.err)
	}
}

// onThreadWithoutNetfilter is refuseNetfilter for a goroutine. The thread ends with the goroutine.
func onThreadWithoutNetfilter() error {
	runtime.LockOSThread()
	return refuseNetfilter()
}

// refuseNetfilter makes the kernel refuse netfilter sockets to this thread, like a kernel without nfnetlink.
func refuseNetfilter() error {
	// Offsets in struct seccomp_data: the number of the system call, its first and third argument
	// (their lower half, on machines of both our architectures).
	const number, first, third = 0, 16, 32
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
	}
	program := []unix.SockFilter{
		load(number), unless(unix.SYS_SOCKET, 5),
		load(first), unless(unix.AF_NETLINK, 3),
		load(third), unless(unix.NETLINK_NETFILTER, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}
