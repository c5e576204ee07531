package kube

import (
	"regexp"

	"github.com/fairway-net/fairway/internal/api"
)

// serviceName matches the name of a Service in a text about a problem. All such texts name it "Service NAMESPACE/NAME".
var serviceName = regexp.MustCompile(`Service ([a-z0-9-]+)/[a-z0-9][a-z0-9./-]*`)

// hideForeign replaces the names of other namespaces' Services in a text, because an event is for the users of its
// namespace. Logs have the whole text.
func hideForeign(namespace string, p api.Problem) api.Problem {
	p.Message = serviceName.ReplaceAllStringFunc(p.Message, func(found string) string {
		if serviceName.FindStringSubmatch(found)[1] == namespace {
			return found
		}
		return "a Service of another namespace"
	})
	return p
}
