package plan

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/fairway-net/fairway/internal/dns/names"
)

// A Registry is the form of the TXT records that name owners. Its fields are ExternalDNS's flags --txt-owner-id,
// --txt-prefix, --txt-suffix and --txt-wildcard-replacement.
type Registry struct {
	Owner          string
	Prefix, Suffix string // at most one of both
	Wildcard       string // replaces the label "*"; empty: it stays
}

// recordType stands for the type of the record in a prefix or suffix.
const recordType = "%{record_type}"

var ownerID = regexp.MustCompile(`^[A-Za-z0-9._/:-]{1,64}$`)

// Check returns why the settings cannot be used.
func (r Registry) Check() error {
	switch {
	case r.Owner == "":
		return errors.New("--txt-owner-id is missing [give each cluster that writes to the zones its own, as --txt-owner-id my-cluster]")
	case !ownerID.MatchString(r.Owner):
		return fmt.Errorf("--txt-owner-id %q has other characters than letters, digits and ._/:-, or more than 64", r.Owner)
	case r.Prefix != "" && r.Suffix != "":
		return errors.New("--txt-prefix and --txt-suffix exclude each other")
	}
	// Without a separator, "a" + "aaafoo" and "aaaa" + "foo" are one name.
	_, after, inPrefix := strings.Cut(r.Prefix, recordType)
	before, _, inSuffix := strings.Cut(r.Suffix, recordType)
	if inPrefix && !strings.HasPrefix(after, "-") && !strings.HasPrefix(after, ".") {
		return fmt.Errorf("--txt-prefix %q: write - or . after %s", r.Prefix, recordType)
	}
	if inSuffix && !strings.HasSuffix(before, "-") && !strings.HasSuffix(before, ".") {
		return fmt.Errorf("--txt-suffix %q: write - or . before %s", r.Suffix, recordType)
	}
	return nil
}

// TXTName returns the name of the TXT record for a record: the first label gets the type, the prefix and the suffix.
func (r Registry) TXTName(name, kind string) string {
	kind = strings.ToLower(kind)
	label, rest, _ := strings.Cut(name, ".")
	if label == "*" && r.Wildcard != "" {
		label = r.Wildcard
	}
	prefix, suffix := strings.ReplaceAll(r.Prefix, recordType, kind), strings.ReplaceAll(r.Suffix, recordType, kind)
	if !strings.Contains(r.Prefix+r.Suffix, recordType) {
		label = kind + "-" + label
	}
	return strings.TrimSuffix(strings.ToLower(prefix+label+suffix+"."+rest), ".")
}

// ambiguous reports whether the TXT record of a name would also be that of a wildcard.
func (r Registry) ambiguous(name string) bool {
	label, _, _ := strings.Cut(name, ".")
	return r.Wildcard != "" && label == r.Wildcard
}

// The parts of an owner's text.
const (
	heritage      = "external-dns"
	labelOwner    = heritage + "/owner"
	labelResource = heritage + "/resource"
)

// text returns the text of a TXT record for an object's name.
func (r Registry) text(by names.Ref) string {
	return fmt.Sprintf("heritage=%s,%s=%s,%s=%s/%s/%s", heritage, labelOwner, r.Owner, labelResource, strings.ToLower(by.Kind), by.Namespace, by.Name)
}

// An ownership is the content of a TXT record.
type ownership struct {
	owner, resource string // resource is kind/namespace/name
}

// kind returns the kind of the object, in lower case.
func (o ownership) kind() string {
	kind, _, _ := strings.Cut(o.resource, "/")
	return kind
}

// parseOwnership reads a text; false: it names no owner.
func parseOwnership(text string) (o ownership, ok bool) {
	for pair := range strings.SplitSeq(strings.Trim(text, `"`), ",") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "heritage":
			if value != heritage {
				return ownership{}, false
			}
			ok = true
		case labelOwner:
			o.owner = value
		case labelResource:
			o.resource = value
		}
	}
	return o, ok && o.owner != ""
}

// ownerOf reads the TXT records at the name of an owner's record. Records with two owners have none.
func ownerOf(txt Set) (o ownership, ok bool) {
	for _, text := range txt.Values {
		one, named := parseOwnership(text)
		if !named {
			continue
		}
		if ok && one.owner != o.owner {
			return ownership{}, false
		}
		o, ok = one, true
	}
	return o, ok
}
