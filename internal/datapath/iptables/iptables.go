// Package iptables is the datapath of mode iptables: it writes the chains of kube-proxy's mode iptables, which every
// article about Services shows.
//
//	PREROUTING, OUTPUT → KUBE-SERVICES ─┬→ KUBE-SVC-… ──────────────┬→ KUBE-SEP-… → DNAT
//	                       │            ├→ KUBE-EXT-… → KUBE-SVL-… ─┘      │
//	                       │            └→ KUBE-FW-…  → KUBE-EXT-…   KUBE-MARK-MASQ
//	                       └→ KUBE-NODEPORTS → KUBE-EXT-…
//	POSTROUTING → KUBE-POSTROUTING: masquerades marked packets
//	filter: KUBE-SERVICES, KUBE-EXTERNAL-SERVICES, KUBE-NODEPORTS reject and drop
//
// The code goes in one direction:
//
//	service.Table ── layout.go, render.go, endpoints.go ──→ rules
//	rules and the rules before ── groups.go, plan.go ─────→ what differs: the input of iptables-restore
//	              ── sync.go ──→ kernel ── package read ──→ rules ── adopt.go ──→ service.Table
//	              ── verify.go: reads back, finds what another program changed
//
// The package chooses between the two kinds of iptables (nft, legacy). Beyond the contract in package datapath it
// promises that a change writes only its own chains, with iptables-restore, and that the table can be read back from
// the rules. Facts that no match or target shows are in the rules' comments. The comments are therefore data, which
// adopt.go and affinitynumbers.go parse. The node's settings are comments in the chain FAIRWAY.
//
// A small table of nf_tables (helper.nft.tmpl) does two things that iptables cannot do. It keeps any number of clients
// at their endpoints, while xt_recent keeps 100 for each endpoint. And it refuses packets to unused ports of
// ClusterIPs.
//
// The package needs the programs iptables-*, ip6tables-* and nft.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultMark is kube-proxy's mark: bit 14.
const DefaultMark = numbers.MarkMasquerade

// A Variant is one of the two sets of programs, each with its own rules in the kernel.
type Variant = xtables.Variant

// The variants. Auto takes the variant that the kubelet or other programs use already, as kube-proxy's images do, and
// nf_tables if there are no rules.
const (
	Auto   Variant = 0
	NFT            = xtables.NFT
	Legacy         = xtables.Legacy
)

// Config configures the datapath. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade me". 0: DefaultMark.
	Mark uint32
	// Variant is the iptables to use.
	Variant Variant
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	datapath.Tracked
	cfg       Config
	variant   Variant      // Auto: not chosen yet
	failWrite func() error // a test's fault; may be nil
	helper    *helper
	reader    read.Reader
	renderer  *renderer

	table   *service.Table                // the table in the kernel; nil if unknown: the next Sync reads everything
	groups  map[group][]*service.Frontend // its frontends
	adopted *read.Snapshot                // the rules that Adopt read, for the first Sync; may be nil
	repair  map[bool]*script              // the changes that Check found necessary; nil if none

	mismatch     mismatch  // the kernel's differences after the last full Sync
	reloadHelper bool      // another program changed the helper's rules
	nextRead     time.Time // when Check may read all rules again
}

var _ datapath.Datapath = (*Datapath)(nil)

// New returns a datapath. It does not touch the kernel.
func New(cfg Config) (*Datapath, error) {
	if cfg.Mark == 0 {
		cfg.Mark = DefaultMark
	}
	if cfg.Variant > Legacy {
		return nil, fmt.Errorf("iptables: there is no variant %d", cfg.Variant)
	}
	return &Datapath{cfg: cfg, helper: newHelper()}, nil
}

// Info implements datapath.Datapath. The mode counts nothing, because iptables' counters start again with each rule
// that is written.
func (d *Datapath) Info() datapath.Info {
	return datapath.Info{Name: datapath.IPTables, Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random, service.RoundRobin),
		Protocols:  []api.Proto{api.TCP, api.UDP, api.SCTP},
	}}
}

// FailWrites makes every write call f first and fail with its error. Tests inject faults with it.
func (d *Datapath) FailWrites(f func() error) {
	d.failWrite = f
	d.helper.table.FailWrites(f)
}

// Probe implements datapath.Datapath.
func (d *Datapath) Probe(ctx context.Context) error {
	if err := d.helper.table.Probe(ctx); err != nil {
		return err
	}
	var missing error
	for _, v := range []Variant{NFT, Legacy} {
		if d.cfg.Variant != Auto && d.cfg.Variant != v {
			continue
		}
		err := xtables.Installed(xtables.Program(v, true, "restore"))
		if err == nil {
			return nil
		}
		missing = errors.Join(missing, err)
	}
	return missing
}

// Counts implements datapath.Datapath: this mode counts nothing.
func (d *Datapath) Counts(ctx context.Context) (map[api.PortName]datapath.Count, error) {
	return nil, nil
}

// Drain implements datapath.Datapath.
func (d *Datapath) Drain(ctx context.Context) (bool, error) { return datapath.Drained(d.Cleanup(ctx)) }

// Close implements datapath.Datapath.
func (d *Datapath) Close() { d.forget() }

// forget makes the next Sync read the kernel.
func (d *Datapath) forget() {
	d.table, d.groups, d.renderer, d.variant, d.adopted, d.repair = nil, nil, nil, Auto, nil, nil
	d.helper.elems = nil
	d.reader.Close()
	d.helper.watch.Reset()
	d.helper.table.Close()
}

// chooseVariant chooses the kind of iptables, if it is not known.
func (d *Datapath) chooseVariant(ctx context.Context, s *read.Snapshot) (err error) {
	if d.variant == Auto {
		d.variant = d.cfg.Variant
	}
	if d.variant == Auto {
		d.variant, err = s.Variant(ctx)
	}
	return err
}
