// Package api has the nouns of Kubernetes that all groups use, as plain values: names, protocols, pods, namespaces, label
// selectors, and the problems of objects. It needs no Kubernetes library.
//
//	metav1.LabelSelector ── internal/kube ──→ Selector ── Matches(labels) ──→ bool
//
// Selectors with the same meaning are equal values. A Selector never fails, and an empty one matches everything, as in the
// API.
package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An Operator is the condition of a Requirement.
type Operator uint8

// The operators of the Kubernetes API. The zero value stands for an invalid operator, and matches nothing.
const (
	Nothing Operator = iota
	In
	NotIn
	Exists
	DoesNotExist
)

// operators are their names in the API.
var operators = [...]string{In: "In", NotIn: "NotIn", Exists: "Exists", DoesNotExist: "DoesNotExist"}

// ParseOperator reads an operator as the API writes it.
func ParseOperator(text string) (Operator, error) {
	if i := slices.Index(operators[In:], text); i >= 0 {
		return In + Operator(i), nil
	}
	return Nothing, fmt.Errorf("operator %q is none of %s", text, strings.Join(operators[In:], ", "))
}

// A Requirement is one condition of a Selector. Values are sorted; Exists and DoesNotExist
// have none.
type Requirement struct {
	Key    string
	Op     Operator
	Values []string
}

// A Selector matches labels that meet all its Requirements. The zero value matches
// everything.
type Selector struct {
	Requirements []Requirement // sorted, without duplicates
}

// NewSelector returns a Selector with sorted requirements.
func NewSelector(requirements ...Requirement) Selector {
	for _, r := range requirements {
		slices.Sort(r.Values)
	}
	slices.SortFunc(requirements, func(a, b Requirement) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Op, b.Op), slices.Compare(a.Values, b.Values))
	})
	return Selector{slices.CompactFunc(requirements, Requirement.equal)}
}

func (r Requirement) equal(o Requirement) bool {
	return r.Key == o.Key && r.Op == o.Op && slices.Equal(r.Values, o.Values)
}

// Equal reports whether s and o have the same meaning.
func (s Selector) Equal(o Selector) bool {
	return slices.EqualFunc(s.Requirements, o.Requirements, Requirement.equal)
}

// Matches reports whether an object with these labels is selected.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s.Requirements {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r Requirement) matches(labels map[string]string) bool {
	value, has := labels[r.Key]
	switch r.Op {
	case In:
		return has && slices.Contains(r.Values, value)
	case NotIn:
		return !has || !slices.Contains(r.Values, value)
	case Exists:
		return has
	case DoesNotExist:
		return !has
	}
	return false
}

// AnyMatches reports whether one of the selectors matches; false without selectors.
func AnyMatches(selectors []Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
}

// String writes a selector as kubectl does: "app=web,tier in (a,b),!old".
func (s Selector) String() string {
	var parts []string
	for _, r := range s.Requirements {
		values := strings.Join(r.Values, ",")
		switch {
		case r.Op == In && len(r.Values) == 1:
			parts = append(parts, r.Key+"="+values)
		case r.Op == In:
			parts = append(parts, r.Key+" in ("+values+")")
		case r.Op == NotIn:
			parts = append(parts, r.Key+" notin ("+values+")")
		case r.Op == Exists:
			parts = append(parts, r.Key)
		case r.Op == DoesNotExist:
			parts = append(parts, "!"+r.Key)
		default:
			parts = append(parts, r.Key+" is unreadable")
		}
	}
	return strings.Join(parts, ",")
}
