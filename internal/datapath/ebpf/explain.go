package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// explainFront returns the element of the map fronts for a frontend, with its counter. It returns none if connect time
// leaves the frontend to nf_tables.
func explainFront(pins string, k service.Key) ([]datapath.Object, error) {
	if k.Proto != api.TCP {
		return nil, nil
	}
	name := filepath.Join(pins, "fronts")
	m, err := ebpf.LoadPinnedMap(name, &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the frontends of connect time: %w", err)
	}
	defer m.Close()
	var f connectFront
	if err := m.Lookup(addrOf(k.Addr), &f); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read a frontend of connect time: %w", err)
	}
	clients := "the node"
	if f.Flags&flagPods != 0 {
		clients = "the node and pods"
	}
	text := fmt.Sprintf("%s : %d slots for %s, %d sockets translated", datapath.FrontKey(k), f.Slots, clients, f.Chosen)
	return []datapath.Object{{Kind: "map element", Name: name, Text: text}}, nil
}
