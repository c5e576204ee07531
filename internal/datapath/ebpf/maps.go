package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// Flags of a front, as in connect.c.
const (
	flagRoundRobin = 1
	flagPods       = 2
)

// batch is how many elements one system call reads.
const batch = 4096

// A list is the content of the maps for one frontend. An empty list leaves the frontend to nf_tables.
type list struct {
	flags uint32
	slots []connectAddr
}

func addrOf(a netip.AddrPort) (c connectAddr) {
	ip := a.Addr().As16()
	for i := range c.Ip {
		c.Ip[i] = binary.NativeEndian.Uint32(ip[4*i:])
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], a.Port())
	c.Port = binary.NativeEndian.Uint16(port[:])
	return c
}

// translatable reports whether the programs may translate sockets to a frontend with the same result as nf_tables.
func translatable(f *service.Frontend) bool {
	return f != nil && f.Proto == api.TCP && !f.NodePort() && f.Internal.Action == service.Forward &&
		len(f.Sources) == 0 && f.Affinity == 0 &&
		(f.Balance == service.Random || f.Balance == service.RoundRobin || f.Balance == service.DestHash)
}

// podsToo reports whether this also holds for pods. A masqueraded client needs nf_tables. If the node cannot tell pods
// from strangers, pods are external clients.
func podsToo(f *service.Frontend, s *service.Settings) bool {
	is4, is6 := s.Detect()
	if f.Addr.Addr().Is4() && is4 || f.Addr.Addr().Is6() && is6 {
		return f.Internal.Masquerade != service.MasqueradeAll
	}
	return f.External.Equal(f.Internal) && f.Internal.Masquerade == service.MasqueradeHairpin
}

// listOf returns the list of a frontend, with the slots of nf_tables.
func (d *Datapath) listOf(f *service.Frontend, s *service.Settings) (l list) {
	if !translatable(f) {
		return l
	}
	slots := d.Slots(f.Key())
	if f.Balance == service.DestHash && len(slots) > 0 { // the hash of the frontend's address is constant
		at := lb.Pick(lb.Hash(f.Addr.Addr()), len(slots))
		slots = slots[at : at+1]
	}
	for _, a := range slots {
		if !a.IsValid() {
			return list{}
		}
		l.slots = append(l.slots, addrOf(a))
	}
	if f.Balance == service.RoundRobin {
		l.flags |= flagRoundRobin
	}
	if podsToo(f, s) {
		l.flags |= flagPods
	}
	return l
}

// withdrawChanged removes the frontends that differ from the last table.
func (d *Datapath) withdrawChanged(want *service.Table) (deleted int, err error) {
	for _, c := range service.Diff(d.table, want) {
		if !translatable(c.Old) {
			continue
		}
		n, err := d.withdraw(addrOf(c.Old.Addr))
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// withdraw removes one frontend. The slots go after the front that leads to them.
func (d *Datapath) withdraw(key connectAddr) (deleted int, err error) {
	var f connectFront
	err = d.prog.Fronts.LookupAndDelete(key, &f)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	for i := range f.Slots {
		if err != nil {
			return deleted, err
		}
		err = d.prog.Slots.Delete(connectSlotKey{Front: key, Slot: i})
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
		deleted++
	}
	return deleted + 1, err
}

// publishChanged writes the frontends that differ from the last table.
func (d *Datapath) publishChanged(want *service.Table) (added int, err error) {
	for _, c := range service.Diff(d.table, want) {
		if !translatable(c.New) {
			continue
		}
		n, err := d.publish(addrOf(c.New.Addr), d.listOf(c.New, &want.Settings))
		if added += n; err != nil {
			return added, err
		}
	}
	return added, nil
}

// publish writes one frontend. The slots come before the front that leads to them. A full map leaves the frontend to
// nf_tables.
func (d *Datapath) publish(key connectAddr, l list) (added int, err error) {
	if len(l.slots) == 0 {
		return 0, nil
	}
	for i, a := range l.slots {
		if err := d.prog.Slots.Put(connectSlotKey{Front: key, Slot: uint32(i)}, a); err != nil {
			return added, err
		}
		added++
	}
	return added + 1, d.prog.Fronts.Put(key, connectFront{Slots: uint32(len(l.slots)), Flags: l.flags})
}

// withdrawStale removes the frontends of the maps that the table want does not have with all of their endpoints.
func (d *Datapath) withdrawStale(want *service.Table) (deleted int, err error) {
	held, err := d.readBack()
	if err != nil {
		return 0, err
	}
	wanted := map[connectAddr]*service.Frontend{}
	for f := range want.Frontends() {
		if translatable(f) {
			wanted[addrOf(f.Addr)] = f
		}
	}
	for key, l := range held {
		if f := wanted[key]; f != nil && l.within(f, podsToo(f, &want.Settings)) {
			continue
		}
		n, err := d.withdraw(key)
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// within reports whether a list has only endpoints of f, and serves pods only if it may.
func (l list) within(f *service.Frontend, pods bool) bool {
	ends := map[connectAddr]bool{}
	for _, e := range f.Internal.Endpoints {
		ends[addrOf(e.Addr)] = true
	}
	return (pods || l.flags&flagPods == 0) && !slices.ContainsFunc(l.slots, func(a connectAddr) bool { return !ends[a] })
}

// publishAll writes the frontends that differ from the maps.
func (d *Datapath) publishAll(want *service.Table) (added int, err error) {
	held, err := d.readBack()
	if err != nil {
		return 0, err
	}
	for f := range want.Frontends() {
		if !translatable(f) {
			continue
		}
		key, is := addrOf(f.Addr), d.listOf(f, &want.Settings)
		if was := held[key]; was.flags == is.flags && slices.Equal(was.slots, is.slots) {
			continue
		}
		if _, err := d.withdraw(key); err != nil {
			return added, err
		}
		n, err := d.publish(key, is)
		if added += n; err != nil {
			return added, err
		}
	}
	return added, nil
}

// readBack reads the maps, and removes slots that no front leads to.
func (d *Datapath) readBack() (map[connectAddr]list, error) {
	held := map[connectAddr]list{}
	err := readAll(d.prog.Fronts, func(k connectAddr, f connectFront) {
		held[k] = list{flags: f.Flags, slots: make([]connectAddr, min(f.Slots, 1<<16))}
	})
	if err != nil {
		return nil, fmt.Errorf("read fronts: %w", err)
	}
	var stray []connectSlotKey
	err = readAll(d.prog.Slots, func(k connectSlotKey, a connectAddr) {
		if l := held[k.Front]; k.Slot < uint32(len(l.slots)) {
			l.slots[k.Slot] = a
			return
		}
		stray = append(stray, k)
	})
	if err != nil {
		return nil, fmt.Errorf("read slots: %w", err)
	}
	for _, k := range stray {
		if err := d.prog.Slots.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("delete a stray slot: %w", err)
		}
	}
	return held, nil
}

// readAll calls f with each element of a hash.
func readAll[K, V any](m *ebpf.Map, f func(K, V)) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
