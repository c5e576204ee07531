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

// Run runs cmd inside the node whose first process is init, to its end. The
// command's path is looked up inside the node.
func Run(init int, cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread is of no other use
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

// enter moves the calling thread into the namespaces of process init. Only
// processes started from the thread get the new process ids.
func enter(init int) error {
	fd, err := unix.PidfdOpen(init, 0)
	if err != nil {
		return fmt.Errorf("find process %d: %w", init, err)
	}
	defer unix.Close(fd)
	// A thread that shares its root directory with others may not change its
	// mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare root directory: %w", err)
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS
	if err := unix.Setns(fd, all); err != nil {
		return fmt.Errorf("enter namespaces of process %d: %w", init, err)
	}
	return nil
}

// signalLimit is how long it may take to signal all processes of a node.
const signalLimit = 30 * time.Second

// ImportImages brings an archive (docker or OCI) into the node's containerd.
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

// Socket is where containerd's socket of the node is seen from outside.
func Socket(init int) string { return fmt.Sprintf("/proc/%d/root%s", init, containerdSocket) }

// Listens returns an error unless a server takes connections at a socket, whose file is there a moment before that.
func Listens(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}

// tail keeps the end of what is written to it.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if extra := len(t.data) - 500; extra > 0 {
		t.data = t.data[extra:]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.data)) }

// Signal sends a signal to every process of the node whose first process is init: in one
// step of the kernel, which no process that is just being started escapes.
func Signal(init int, s unix.Signal) error {
	// The first process is not reached from inside. Stopped first, it starts nothing anew;
	// continued last, it finds its children as they were.
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
	// A process in the node's pid namespace reaches all others in it by the number -1.
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
