// Package nftables is the datapath that uses nf_tables.
//
//	Table ─ Diff ─→ changes ─ render ─→ frontendState ─ plan ─→ writes ─ Commit ─→ kernel
//	                             ↑                                                       │
//	                             └─────────── state ←───────── read (first, or after an error)
//
// The program (ruleset.nft.tmpl) is constant; it is loaded as text once per version and
// defines the path of a packet. A Service is a handful of elements of its maps, so that the
// cost of a change depends on its size only, with ten Services or fifty thousand.
//
// It hides how a Table is laid out in those maps. It promises, beyond the contract in
// package datapath, that an endpoint which stays keeps its slot (except with Maglev),
// that between two transactions of one Sync every frontend is complete, that another
// version takes over with all elements in place, and that it touches nothing but its
// own table, inet fairway.
//
// It needs the program nft once, at the first Sync of a new version, and a kernel of
// 5.13 or later (reject in prerouting, concatenated data in maps).
package nftables

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultMark is the mark of kube-proxy: bit 14.
const DefaultMark = numbers.MarkMasquerade

// Config configures the datapath. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade me". 0: DefaultMark.
	Mark uint32
	// CountTraffic counts connections, packets and bytes for each Service port, which
	// costs each connection and each packet some lookups. Rejects and drops are counted
	// always.
	CountTraffic bool
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	datapath.Tracked
	ruleset    *nft.Ruleset
	text       string // the program for people
	writer     ruleWriter
	count      bool // traffic is counted
	syncer     *nftset.Syncer[*state]
	table      *service.Table      // what the kernel holds; nil: unknown, read it
	state      *state              // the same, as elements
	pruneAgain map[affinityID]bool // affinity IDs to prune once more at the next Check
}

var _ datapath.Datapath = (*Datapath)(nil)

//go:embed ruleset.nft.tmpl
var rulesetText string

// New returns a datapath. It does not touch the kernel.
func New(cfg Config) (*Datapath, error) {
	if cfg.Mark == 0 {
		cfg.Mark = DefaultMark
	}
	d := &Datapath{writer: ruleWriter{mark: cfg.Mark, count: cfg.CountTraffic}, count: cfg.CountTraffic}
	d.ruleset = &nft.Ruleset{
		Source: rulesetText,
		Data: map[string]any{
			"Mark": fmt.Sprintf("%#x", cfg.Mark), "Reject": verdictReject, "Drop": verdictDrop, "PolicyCheck": verdictPolicyCheck,
			"ExternalOffset": externalOffset, "DropInvalid": true,
			"Count": cfg.CountTraffic, "Protocols": []string{"tcp", "udp", "sctp"},
		},
		Salt:         d.writer.salt(),
		DynamicChain: writtenChain, FixListing: loadable,
	}
	d.syncer = nftset.NewSyncer(datapath.NFTables, nft.New(tableName), d.read)
	var err error
	if d.text, err = d.ruleset.Text(tableName); err != nil {
		return nil, err
	}
	return d, nil
}

// Info implements datapath.Datapath.
func (d *Datapath) Info() datapath.Info {
	counts := datapath.CountsRejects | datapath.CountsDrops
	if d.count {
		counts |= datapath.CountsConnections | datapath.CountsPackets | datapath.CountsBytes
	}
	return datapath.Info{Name: datapath.NFTables, Program: d.text, Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random, service.RoundRobin, service.SourceHash, service.DestHash, service.Maglev),
		Protocols:  []api.Proto{api.TCP, api.UDP, api.SCTP},
		Counts:     counts,
	}}
}

// FailWrites makes every write ask f first and fail with its error. It is for tests
// that inject faults.
func (d *Datapath) FailWrites(f func() error) { d.syncer.Table.FailWrites(f) }

// Probe reports why the datapath cannot work here: no privileges, no nf_tables, no nft.
// It changes nothing.
func (d *Datapath) Probe(ctx context.Context) error { return d.syncer.Table.Probe(ctx) }

// Drain implements datapath.Datapath.
func (d *Datapath) Drain(ctx context.Context) (bool, error) { return datapath.Drained(d.Cleanup(ctx)) }

// Close implements datapath.Datapath.
func (d *Datapath) Close() { d.forget() }

// forget makes the next Sync read the kernel.
func (d *Datapath) forget() {
	d.table, d.state = nil, nil
	d.syncer.Forget()
}
