package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/text"
)

// A unit is a program that init keeps running on the node.
type unit struct {
	name    string
	argv    []string
	started time.Time
	short   int // number of consecutive short lives
}

// A unit whose life is shorter than shortLife for shortLives times in a row is broken. Another start would only fill
// the log.
const (
	shortLife  = 5 * time.Second
	shortLives = 5
)

// Init is the first process of the node. It sets the node up, starts the node's programs, restarts a program that ends,
// and reaps orphans. It returns on SIGTERM, and then the kernel ends every other process of the node. kubelet is the
// command line that runs RunKubelet.
func (c Config) Init(ctx context.Context, log *slog.Logger, kubelet []string) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("init of %s is not the first process of a pid namespace", c.Name)
	}
	if err := c.createCgroups(); err != nil {
		return err
	}
	if err := c.enterCgroup(); err != nil {
		return err
	}
	if err := c.mountAll(); err != nil {
		return err
	}
	if err := writeTools(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := c.writeContainerdConfig(); err != nil {
		return err
	}
	units := []unit{
		{name: "containerd", argv: []string{"containerd", "--config", c.path("containerd.toml")}},
		{name: "kubelet", argv: kubelet},
	}
	return c.supervise(ctx, log, units)
}

// supervise has the role of systemd on a machine. It does not wait for processes with os/exec, because the first
// process of a namespace inherits every orphan and must reap any child.
func (c Config) supervise(ctx context.Context, log *slog.Logger, units []unit) error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	restart := make(chan unit, len(units))
	running := map[int]unit{}
	for _, u := range units {
		restart <- u
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case u := <-restart:
			pid, err := c.start(u)
			if err != nil {
				return err
			}
			log.Info("start", "unit", u.name, "pid", pid)
			u.started = time.Now()
			running[pid] = u
		case <-ended:
			for pid, status := range reap() {
				u, ok := running[pid]
				if !ok {
					continue
				}
				delete(running, pid)
				log.Error("ended, start again", "unit", u.name, "pid", pid,
					"status", status.ExitStatus(), "signal", status.Signal())
				if time.Since(u.started) > shortLife {
					u.short = 0
				}
				if u.short++; u.short == shortLives {
					return fmt.Errorf("%s keeps ending; it said last: %s", u.name, c.lastLine(u))
				}
				time.AfterFunc(time.Second, func() { restart <- u })
			}
		}
	}
}

// reap reaps every child that has ended.
func reap() map[int]unix.WaitStatus {
	dead := map[int]unix.WaitStatus{}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return dead
		}
		dead[pid] = status
	}
}

func (c Config) log(u unit) string { return filepath.Join(c.Logs, u.name+"-"+c.Name+".log") }

// lastLine returns the unit's last log line.
func (c Config) lastLine(u unit) string {
	data, err := os.ReadFile(c.log(u))
	if err != nil {
		return "nothing"
	}
	return text.LastLine(string(data))
}

func (c Config) start(u unit) (int, error) {
	path, err := exec.LookPath(u.argv[0])
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", u.name, err)
	}
	log, err := os.OpenFile(c.log(u), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, fmt.Errorf("open null device: %w", err)
	}
	defer null.Close()
	pid, err := syscall.ForkExec(path, u.argv, &syscall.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", u.name, err)
	}
	return pid, nil
}
