package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Scenario is one file.
type Scenario struct {
	Name     string // the name of the file without directory and ".txtar"
	Facts    service.Facts
	Packets  []Packet
	Services []*service.Service
	Slices   []*service.Slice
	// HostPods are pods of the node with ports on the node's addresses.
	HostPods []*service.HostPod

	path    string
	archive *txtar.Archive
}

// Load reads all scenarios of a directory. An empty directory is an error.
func Load(dir string) ([]*Scenario, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, fmt.Errorf("list scenarios: %w", err)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no scenarios (*.txtar) in %s", dir)
	}
	var all []*Scenario
	for _, p := range paths {
		s, err := read(p)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Dir returns the directory of the policy's scenarios, for tests in any package of the module.
func Dir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find scenarios: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "internal", "service", "testdata"), nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("find scenarios: no go.mod above the working directory")
		}
		dir = up
	}
}

func read(path string) (*Scenario, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	s, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.path = path
	s.Name = strings.TrimSuffix(filepath.Base(path), ".txtar")
	return s, nil
}

// Table returns the table of the scenario's objects.
func (s *Scenario) Table() *service.Table {
	b := service.NewBuilder().Limit(s.Facts.Limits)
	for _, svc := range s.Services {
		b.Set(service.Compile(svc, s.SlicesOf(svc.Name), s.Facts))
	}
	for _, p := range s.HostPods {
		b.Set(service.CompileHostPod(p, nodeAddrs(), s.Facts.Node))
	}
	return b.Table(s.Facts.Settings)
}

// nodeAddrs returns the addresses of host ports.
func nodeAddrs() service.AddrSet {
	w := &World
	return service.NewAddrSet(w.Node.V4, w.Node.V6, w.Extra.V4, w.Extra.V6)
}

// Offer returns the scenario for a node whose datapath offers only the given algorithms.
func (s *Scenario) Offer(all service.Algorithms) *Scenario {
	o := *s
	o.Facts.Node = offer(o.Facts.Node, all)
	return &o
}

func offer(n service.Node, all service.Algorithms) service.Node {
	n.Unsupported |= ^all
	if n.Unsupported.Has(n.Balance) {
		n.Balance = service.Random
	}
	return n
}

// SlicesOf returns the slices of a Service.
func (s *Scenario) SlicesOf(n api.Name) []*service.Slice {
	var out []*service.Slice
	for _, slice := range s.Slices {
		if slice.Service == n {
			out = append(out, slice)
		}
	}
	return out
}

// Golden returns a file of the scenario. ok is false if there is none.
func (s *Scenario) Golden(name string) (string, bool) {
	for _, f := range s.archive.Files {
		if f.Name == name {
			return string(f.Data), true
		}
	}
	return "", false
}

// Update writes a golden file back into the scenario. Empty text removes it.
func (s *Scenario) Update(name, text string) error {
	var files []txtar.File
	found := false
	for _, f := range s.archive.Files {
		if f.Name == name {
			f.Data, found = []byte(text), true
		}
		if len(f.Data) > 0 {
			files = append(files, f)
		}
	}
	if !found && text != "" {
		files = append(files, txtar.File{Name: name, Data: []byte(text)})
	}
	s.archive.Files = files
	if err := os.WriteFile(s.path, txtar.Format(s.archive), 0o644); err != nil {
		return fmt.Errorf("update scenario: %w", err)
	}
	return nil
}

// Endpoints returns the addresses and ports of the scenario's slices and host ports, each once, with its node. The node
// is empty if the slice does not name it.
func (s *Scenario) Endpoints() map[service.Key]string {
	all := Endpoints(s.Slices)
	for _, pod := range s.HostPods {
		for _, p := range pod.Ports {
			for _, a := range pod.Addrs {
				all[service.Key{Addr: netip.AddrPortFrom(a, p.To), Proto: p.Proto}] = s.Facts.Name
			}
		}
	}
	return all
}

// Endpoints returns the addresses and ports of the slices, with their nodes.
func Endpoints(slices []*service.Slice) map[service.Key]string {
	all := map[service.Key]string{}
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			for _, p := range slice.Ports {
				k := service.Key{Addr: netip.AddrPortFrom(e.Addr, p.Port), Proto: p.Proto}
				if all[k] == "" {
					all[k] = e.Node
				}
			}
		}
	}
	return all
}
