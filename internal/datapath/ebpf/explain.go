package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// explainFront returns the element of the map fronts for a frontend, with its counter, and those of its endpoints. It
// returns none if connect time leaves the frontend to nf_tables.
func explainFront(pins string, k service.Key) ([]datapath.Object, error) {
	if k.Proto != api.TCP {
		return nil, nil
	}
	m, err := openMaps(pins, "settings", "fronts", "slots", "endpoints")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the maps of connect time: %w", err)
	}
	defer m.close()
	if known, err := m.known(); err != nil || !known {
		return nil, err
	}
	front := addrOf(k.Addr)
	var f connectFront
	if err := m["fronts"].Lookup(front, &f); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read a frontend of connect time: %w", err)
	}
	clients := "the node"
	if f.Flags&flagPods != 0 {
		clients = "the node and pods"
	}
	all, err := m.explainEndpoints(pins, front, f.Slots)
	text := fmt.Sprintf("%s : %d slots for %s, %d sockets translated", datapath.FrontKey(k), f.Slots, clients, f.Chosen)
	return append(all, datapath.Object{Kind: "map element", Name: filepath.Join(pins, "fronts"), Text: text}), err
}

// explainEndpoints returns the elements of a list's endpoints, in the order of their first slots. It leaves out slots
// that change meanwhile.
func (m openedMaps) explainEndpoints(pins string, front connectAddr, slots uint32) (all []datapath.Object, err error) {
	seen := map[connectAddr]bool{}
	clock, err := now()
	if err != nil {
		return nil, err
	}
	for i := range min(slots, lb.MaxSlots) {
		var s connectSlot
		var e connectEndpoint
		err := m["slots"].Lookup(connectSlotKey{Front: front, Slot: i}, &s)
		if err == nil && seen[s.To] {
			continue
		}
		if err == nil {
			err = m["endpoints"].Lookup(s.To, &e)
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return all, fmt.Errorf("read an endpoint of connect time: %w", err)
		}
		seen[s.To] = true
		at := s.To.addrPort()
		text := fmt.Sprintf("%v . tcp . %d : %d open", at.Addr(), at.Port(), e.Open)
		if e.ejected(clock) {
			x := e.ejection(at, clock)
			text += fmt.Sprintf(", ejected since %s until %s: %s", x.Since.Format(time.TimeOnly), x.Until.Format(time.TimeOnly), x.Reason)
		}
		all = append(all, datapath.Object{Kind: "map element", Name: filepath.Join(pins, "endpoints"), Text: text})
	}
	return all, nil
}

// openedMaps are pinned maps by their names, read-only.
type openedMaps map[string]*ebpf.Map

func openMaps(pins string, names ...string) (openedMaps, error) {
	all := openedMaps{}
	for _, name := range names {
		m, err := ebpf.LoadPinnedMap(filepath.Join(pins, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			all.close()
			return nil, err
		}
		all[name] = m
	}
	return all, nil
}

// known reports whether the maps have this version's layout. An agent of another version may have made them.
func (m openedMaps) known() (bool, error) {
	node, err := m["settings"].LookupBytes(uint32(0))
	return err == nil && layoutIn(node) == layout, err
}

func (m openedMaps) close() {
	for _, one := range m {
		one.Close()
	}
}
