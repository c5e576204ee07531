package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/process"
)

// A Lab is a cluster on this machine, running or not. Name tells the labs of a machine apart, and the usual lab has the
// empty name.
type Lab struct {
	Name string
}

// Dir is the directory with all files of the lab.
func (l Lab) Dir() string { return "/var/lib/" + l.id() }

func (l Lab) id() string {
	if l.Name == "" {
		return "fairway-lab"
	}
	return "fairway-lab-" + l.Name
}

func (l Lab) path(elem ...string) string {
	return filepath.Join(append([]string{l.Dir()}, elem...)...)
}

// Kubeconfig is the path of the administrator's kubeconfig, for use on this machine.
func (l Lab) Kubeconfig() string { return l.path("kubeconfig") }

func (l Lab) pki() string                { return l.path("pki") }
func (l Lab) logs() string               { return l.path("logs") }
func (l Lab) nodeDir(name string) string { return l.path("nodes", name) }
func (l Lab) fabric() fabric.Fabric      { return fabric.Fabric{Dir: l.path("net")} }
func (l Lab) cgroup() string             { return "/" + l.id() }

// nameForm matches names that are a single element of a path or a cgroup, and that no command takes for an option.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName returns an error if the lab's name is not valid.
func (l Lab) CheckName() error {
	if l.Name == "" || nameForm.MatchString(l.Name) {
		return nil
	}
	return fmt.Errorf("--name %q is not a lab's name [up to 63 of a-z, 0-9 and -; not - at the ends]", l.Name)
}

// Command returns a command line of fairway-lab for this lab, for advice in texts.
func (l Lab) Command(args string) string {
	if l.Name == "" {
		return "fairway-lab " + args
	}
	return "fairway-lab --name " + l.Name + " " + args
}

// ErrNoLab says that no lab has this name.
var ErrNoLab = errors.New("no lab is up")

// noLab returns ErrNoLab with the names of the other labs.
func (l Lab) noLab() error {
	advice := l.Command("up") + " starts one"
	if others := Labs(); len(others) > 0 {
		return fmt.Errorf("%w by the name %s [running: %s; %s]", ErrNoLab, l, listed(others), advice)
	}
	return fmt.Errorf("%w [%s]", ErrNoLab, advice)
}

const stateFile = "lab.json"

// State is the content of lab.json, the lab's record of itself.
type State struct {
	Options   Options          `json:"options"`
	Started   time.Time        `json:"started"`
	Ready     bool             `json:"ready"` // Up finished
	Processes []process.Record `json:"processes"`
	Dirs      []string         `json:"dirs"` // directories that the lab made as mount points, outermost first
}

func (l Lab) load() (*State, error) {
	data, err := os.ReadFile(l.path(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, l.noLab()
	}
	if err != nil {
		return nil, fmt.Errorf("read lab: %w", err)
	}
	s := &State{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("decode lab: %w [%s removes it]", err, l.Command("down"))
	}
	return s, nil
}

// save replaces the file in one step, so that the lab stays known if this program is killed at any moment.
func (l Lab) save(s *State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode lab: %w", err)
	}
	return replaceFile(l.path(stateFile), bytes.NewReader(data), 0o644)
}

// process finds a process by its name. An unknown name returns the zero Record, which is not alive.
func (s *State) process(name string) process.Record {
	for _, r := range s.Processes {
		if r.Name == name {
			return r
		}
	}
	return process.Record{}
}

// replace records a process, in the place of an earlier process with the same name.
func (s *State) replace(r process.Record) {
	for i, old := range s.Processes {
		if old.Name == r.Name {
			s.Processes[i] = r
			return
		}
	}
	s.Processes = append(s.Processes, r)
}

// forget removes a process from the lab's record.
func (s *State) forget(name string) {
	s.Processes = slices.DeleteFunc(s.Processes, func(r process.Record) bool { return r.Name == name })
}

// dead names the processes that should run and do not.
func (s *State) dead() []string {
	var names []string
	for _, r := range s.Processes {
		if !r.Alive() {
			names = append(names, r.Name)
		}
	}
	return names
}

// lock keeps another command from changing the lab. It locks the directory itself, so the lock leaves no file when the
// directory is gone.
func (l Lab) lock() (unlock func(), err error) {
	dir, err := os.Open(l.Dir())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", l.Dir(), err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, fmt.Errorf("another fairway-lab up or down is at work in %s [wait for it to end]", l.Dir())
	}
	// Another down may have removed the directory between the two calls. Then no other process finds the locked
	// directory.
	locked, err1 := dir.Stat()
	there, err2 := os.Stat(l.Dir())
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(locked, there) {
		dir.Close()
		return nil, fmt.Errorf("%s was removed meanwhile [try again]", l.Dir())
	}
	return func() { dir.Close() }, nil
}

// Check returns an error if no lab has this name, not even a partly made one.
func (l Lab) Check() error {
	if _, err := l.load(); errors.Is(err, ErrNoLab) {
		return err
	}
	return nil
}

// broken returns an error that names a part of the lab that has ended.
func (l Lab) broken(part string) error {
	return fmt.Errorf("%s is not running [%s starts it again]", part, l.healCommand(part))
}
