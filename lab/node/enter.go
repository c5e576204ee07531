package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/text"
)

// Run runs cmd inside the node whose first process is init, and waits for its end. It looks the command's path up
// inside the node.
func Run(init int, cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with this goroutine
		if err := enter(init); err != nil {
			done <- err
			return
		}
		path, err := exec.LookPath(cmd.Args[0])
		if err != nil {
			done <- fmt.Errorf("find %s: %w", cmd.Args[0], err)
			return
		}
		cmd.Path, cmd.Err, cmd.Dir = path, nil, "/"
		done <- cmd.Run()
	}()
	return <-done
}

// enter moves the calling thread into the namespaces of process init. The thread keeps its own PID namespace: only
// processes that it starts are in the new one.
func enter(init int) error {
	fd, err := unix.PidfdOpen(init, 0)
	if err != nil {
		return fmt.Errorf("find process %d: %w", init, err)
	}
	defer unix.Close(fd)
	// A thread that shares its root directory with other threads may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare root directory: %w", err)
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS
	if err := unix.Setns(fd, all); err != nil {
		return fmt.Errorf("enter namespaces of process %d: %w", init, err)
	}
	return nil
}

// signalLimit is the time limit for signalling all processes of a node.
const signalLimit = 30 * time.Second

// ImportImages imports an archive (docker or OCI) into the node's containerd.
func ImportImages(ctx context.Context, init int, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open image archive: %w", err)
	}
	defer file.Close()
	cmd := exec.CommandContext(ctx, "ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = file
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := Run(init, cmd); err != nil {
		return fmt.Errorf("import %s: %w: %s [is it what docker save writes, or an OCI layout in a tar?]", archive, err, text.LastLine(out.String()))
	}
	return nil
}

// Socket returns the path at which the machine sees the node's containerd socket.
func Socket(init int) string { return fmt.Sprintf("/proc/%d/root%s", init, containerdSocket) }

// Listens returns an error unless a server accepts connections at a socket. The socket's file appears a moment earlier.
func Listens(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}

// tail keeps the last 500 bytes of the written data.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if extra := len(t.data) - 500; extra > 0 {
		t.data = t.data[extra:]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.data)) }

// Signal sends a signal to every process of the node whose first process is init. The kernel signals all of them in one
// step, so a process that is just starting does not escape.
func Signal(init int, s unix.Signal) error {
	// A signal from inside does not reach the first process. If it stops first, it starts no other process. If it
	// continues last, it finds its children as they were.
	first, last := init, 0
	if s == unix.SIGCONT {
		first, last = 0, init
	}
	kill := func(pid int) error {
		if pid == 0 {
			return nil
		}
		return unix.Kill(pid, s)
	}
	if err := kill(first); err != nil {
		return fmt.Errorf("signal the node's first process: %w", err)
	}
	// PID -1 stands for all other processes in the sender's PID namespace.
	ctx, cancel := context.WithTimeout(context.Background(), signalLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("kill -%d -1", s))
	if err := Run(init, cmd); err != nil {
		return fmt.Errorf("signal the node's processes: %w", err)
	}
	if err := kill(last); err != nil {
		return fmt.Errorf("signal the node's first process: %w", err)
	}
	return nil
}
