package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// apiServer is where the API server listens in the lab.
const apiServer = "192.168.49.254:6443"

// killPlane ends etcd, the API server, scheduler and controllers, which are one process,
// at once.
func (l *lab) killPlane() {
	l.Helper()
	l.kill(l.plane.Pid, unix.SIGKILL)
	_, _ = l.plane.Wait() // if it is our child
	l.await("the end of the API server", func() error {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.port))
		if err == nil {
			conn.Close()
			return fmt.Errorf("it still accepts")
		}
		return nil
	})
}

// startPlane starts the control plane again as fairway-lab has started it, and returns
// when the API server says that it is ready.
func (l *lab) startPlane() {
	l.Helper()
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", l.port))
	if err != nil {
		l.Fatal(err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		l.Fatal(err)
	}
	defer socket.Close()
	log, err := os.OpenFile(l.path("logs", "control-plane.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		l.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(l.program, "child", "control-plane", l.path("control-plane"))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := l.control.Do(cmd.Start); err != nil {
		l.Fatalf("start the control plane: %v", err)
	}
	l.plane = cmd.Process
	l.await("the API server", func() error {
		return l.api.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error()
	})
}

// reap takes the end of a control plane that was started here and is gone.
func (l *lab) reap() {
	if l.plane != nil {
		_, _ = l.plane.Wait()
	}
}
