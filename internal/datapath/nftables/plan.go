package nftables

import (
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A plan has the writes for some frontends in order. Between two of its transactions every frontend is complete. An
// element that chains look up is added before a packet can reach those chains, and deleted after the last packet.
type plan struct {
	early    []nft.Write // elements that chains look up: added or replaced
	policies []nft.Write // verdicts of frontends with a policy check
	entries  []nft.Write // the elements of frontends, which lead to the chains
	opened   []nft.Write // restrictions of sources: deleted before their ranges
	late     []nft.Write // elements that nothing looks up any more: deleted
}

// writes returns the writes in order. Writes to the same set are adjacent, so that they share messages.
func (p *plan) writes() []nft.Write {
	for _, ws := range [...][]nft.Write{p.early, p.policies, p.entries, p.opened, p.late} {
		slices.SortStableFunc(ws, func(a, b nft.Write) int { return strings.Compare(a.Set, b.Set) })
	}
	return slices.Concat(p.early, p.policies, p.entries, p.opened, p.late)
}

// frontend plans the change of one frontend from was to is.
func (p *plan) frontend(k service.Key, was, is *frontendState) {
	key, is4, nodePort := nftset.FrontendKey(k), k.Addr.Addr().Is4(), k.Addr.Addr().IsUnspecified()
	entry, in, out, eps := nftset.Frontends, frontendsInternal, nftset.FrontendsExternal, endpoints
	if nodePort {
		entry, in, out, eps = nftset.Nodeports, nodeportsInternal, nftset.NodeportsExternal, nodeportEndpoints
	}
	p.slots(eps.Name(is4), key, 0, was.slots, is.slots)
	from, to := was.extraOrZero(), is.extraOrZero()
	p.slots(eps.Name(is4), key, externalOffset, from.externalSlots, to.externalSlots)
	p.sources(k, from.sources, to.sources)
	p.affinity(affinityIDSet(nodePort, false).Name(is4), key,
		affinityEntry{was.name, from.affinityID, from.duration, from.seconds, from.local},
		affinityEntry{is.name, to.affinityID, to.duration, to.seconds, to.local})
	p.affinity(affinityIDSet(nodePort, true).Name(is4), key,
		affinityEntry{was.name, from.affinityIDExternal, from.duration, from.seconds, from.localExternal},
		affinityEntry{is.name, to.affinityIDExternal, to.duration, to.seconds, to.localExternal})
	p.tallies(k, was.tallies, is.tallies)
	p.policy(in.Name(is4), key, from.internal, to.internal)
	p.policy(out.Name(is4), key, from.external, to.external)
	if was.entry != is.entry || is.entry != 0 && was.comment() != is.comment() {
		w := nft.Write{Set: entry.Name(is4), Key: key, Del: was.entry != 0, Add: is.entry != 0}
		if w.Add {
			w.Data, w.Comment = verdictData(is.entry), is.comment()
		}
		p.entries = append(p.entries, w)
	}
}

// policy plans the verdict for internal or external clients.
func (p *plan) policy(set string, key []byte, from, to verdictID) {
	switch {
	case from == to:
	case to == 0:
		p.late = append(p.late, nft.Write{Set: set, Key: key, Del: true})
	default:
		p.policies = append(p.policies, nft.Write{Set: set, Key: key, Data: verdictData(to), Del: from != 0, Add: true})
	}
}

// An affinityEntry is the affinity of a frontend for one list of endpoints. The zero value is no affinity.
type affinityEntry struct {
	name       string
	affinityID affinityID
	duration   durationIndex
	seconds    uint32
	local      bool
}

// affinity plans the affinity ID of a frontend. An ID is added before the chain that looks the ID up.
func (p *plan) affinity(set string, key []byte, from, to affinityEntry) {
	if from == to || from.affinityID == 0 && to.affinityID == 0 {
		return
	}
	w := nft.Write{Set: set, Key: key, Del: from.affinityID != 0, Add: to.affinityID != 0}
	if !w.Add {
		p.late = append(p.late, w)
		return
	}
	w.Data = affinityData(to.duration.priority(to.affinityID))
	w.Comment = affinityPortKey{to.name, false, to.local}.comment(to.seconds)
	p.early = append(p.early, w)
}

// sources plans the sources that a frontend serves.
func (p *plan) sources(k service.Key, was, is nftset.Sources) {
	c := nftset.ChangeSources(k, was, is)
	p.early, p.opened, p.late = append(p.early, c.Before...), append(p.opened, c.Open...), append(p.late, c.After...)
}

// slots plans a list of endpoints. offset is the number of its first slot.
func (p *plan) slots(set string, front []byte, offset uint32, was, is []slot) {
	at := func(list []slot, i int) slot {
		if i < len(list) {
			return list[i]
		}
		return slot{}
	}
	for i := range max(len(was), len(is)) {
		from, to := at(was, i), at(is, i)
		if from == to {
			continue
		}
		w := nft.Write{Set: set, Key: slotKey(front, offset+uint32(i)), Del: from.filled(), Add: to.filled()}
		if !w.Add {
			p.late = append(p.late, w)
			continue
		}
		w.Data, w.Comment = nftset.AddrPort(to.addr()), weightComment(to.weight)
		p.early = append(p.early, w)
	}
}

// settings plans the settings of the node. Each set of intervals is written as a whole.
func (p *plan) settings(was, is *nodeSettings) {
	p.early = append(p.early, nftset.ChangeSettings(was.Settings, is.Settings)...)
	for _, a := range was.hosts {
		if !slices.Contains(is.hosts, a) {
			p.early = append(p.early, nft.Write{Set: nodeportHosts.Name(a.Is4()), Key: a.AsSlice(), Del: true})
		}
	}
	for _, a := range is.hosts {
		if !slices.Contains(was.hosts, a) {
			p.early = append(p.early, nft.Write{Set: nodeportHosts.Name(a.Is4()), Key: a.AsSlice(), Add: true})
		}
	}
}
