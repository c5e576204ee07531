package nftables

import (
	"fmt"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements nftset.State.
func (s *state) Explain(k service.Key) ([]datapath.Object, error) {
	if h := s.frontends[k]; h != nil && h.entry != 0 {
		return h.explain(s.tableName, k), nil
	}
	return nil, nil
}

func (h *frontendState) explain(table string, k service.Key) (all []datapath.Object) {
	entry, in, out, eps := nftset.Frontends, frontendsInternal, nftset.FrontendsExternal, endpoints
	if k.Addr.Addr().IsUnspecified() {
		entry, in, out, eps = nftset.Nodeports, nodeportsInternal, nftset.NodeportsExternal, nodeportEndpoints
	}
	is4, key := k.Addr.Addr().Is4(), datapath.FrontKey(k)
	element := func(s nftset.Set, text string) {
		all = append(all, datapath.Object{Kind: "map element", Name: "inet " + table + " " + s.Name(is4), Text: text})
	}
	policy := func(s nftset.Set, v verdictID) {
		if v != 0 {
			element(s, fmt.Sprintf("%s : %v", key, v))
		}
	}
	element(entry, fmt.Sprintf("%s comment %q : %v", key, h.comment(), h.entry))
	extra := h.extraOrZero()
	policy(in, extra.internal)
	policy(out, extra.external)
	for _, v := range h.verdicts() {
		if v != 0 {
			all = append(all, datapath.Object{Kind: "chain", Name: "inet " + table + " " + v.chainFor(k)})
		}
	}
	for i, list := range [...][]slot{h.slots, extra.externalSlots} {
		for n, at := range list {
			if at.filled() {
				element(eps, fmt.Sprintf("%s . %d : %v . %d", key, n+i*externalOffset, at.addr().Addr(), at.port))
			}
		}
	}
	return all
}

// chainFor returns the name of the chain that a verdict leads packets for k to. The chains for policy checks are in
// ruleset.nft.tmpl: one for each kind of frontend and family.
func (v verdictID) chainFor(k service.Key) string {
	if v != verdictPolicyCheck {
		return v.chainName()
	}
	name := "policy-check"
	if k.Addr.Addr().IsUnspecified() {
		name = "nodeport-" + name
	}
	if k.Addr.Addr().Is6() {
		name += "6"
	}
	return name
}
