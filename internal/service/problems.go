package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// problemsOf returns the problems of a Service's objects. The order of the slices does not matter.
func problemsOf(svc *Service, eps []*Slice) []api.Problem {
	list := slices.Clip(svc.Problems)
	var more []api.Problem
	for _, s := range eps {
		more = append(more, s.Problems...)
	}
	if len(list)+len(more) > api.ProblemLimit {
		slices.SortFunc(more, func(a, b api.Problem) int { return strings.Compare(a.Message, b.Message) })
	}
	for _, p := range more {
		list = api.AddProblem(list, p.Reason, "%s", p.Message)
	}
	return list
}

// some names the first few addresses, and the number of the others.
func some(all []netip.Addr) string {
	const few = 5
	var texts []string
	for _, a := range all[:min(few, len(all))] {
		texts = append(texts, a.String())
	}
	if more := len(all) - few; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
}
