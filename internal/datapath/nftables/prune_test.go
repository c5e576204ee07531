package nftables_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
)

// TestPruneBesideMany: a Service that loses an endpoint forgets the clients of this endpoint. If other Services have
// far more clients, it reads its own clients only: the time to read all n clients grows with the square of n.
func TestPruneBesideMany(t *testing.T) {
	n := newNode(t, nftables.Config{}, 1)
	many := n.frontend("10.96.0.1:80", api.TCP, service.Random)
	few := make([]*service.Frontend, 6) // ports of one Service: the last have few buckets
	for i := range few {
		few[i] = n.frontend(fmt.Sprintf("10.96.0.2:%d", 80+i), api.TCP, service.Random)
		few[i].Service = api.PortName{Name: api.Name{Namespace: "default", Name: "few"}, Port: strconv.Itoa(i)}
		few[i].Affinity = time.Hour
	}
	many.Affinity = time.Hour
	n.sync(append(few, many)...)
	ids := map[string]string{}
	for _, m := range regexp.MustCompile(`10\.96\.0\.(\d) \. tcp \. (\d+) comment \S+ \S+ : (\w+):(\w+)`).FindAllStringSubmatch(n.nft("", "list", "map", "inet", "fairway", "affinity-ids4"), -1) {
		major, _ := strconv.ParseUint(m[3], 16, 32)
		minor, _ := strconv.ParseUint(m[4], 16, 32)
		ids[m[1]+":"+m[2]] = fmt.Sprintf("%#x", (major<<16|minor)&0xf00fffff)
	}
	last := ids["2:85"]
	if len(ids) != 7 || last == "" {
		t.Fatalf("IDs %v", ids)
	}
	var b strings.Builder
	add := func(id string, from, to, endpoint int) {
		b.WriteString("add element inet fairway affinity-buckets4 { ")
		for k := from; k < to; k++ {
			fmt.Fprintf(&b, "%s . %d timeout 1h : 10.244.1.%d . 8080, ", id, k, endpoint)
		}
		b.WriteString("}\n")
	}
	for from := 0; from < 3000; from += 500 {
		add(ids["1:80"], from, from+500, 3)
	}
	add(last, 0, 100, 3)
	add(last, 100, 200, 1)
	n.nft(b.String())
	shorter := *few[5]
	r := *shorter.Internal
	r.Endpoints = r.Endpoints[:2]
	shorter.Internal, shorter.External = &r, &r
	few[5] = &shorter
	n.sync(append(few, many)...)
	left := n.nft("", "list", "map", "inet", "fairway", "affinity-buckets4")
	if gone, stay, others := count(left, last, 3), count(left, last, 1), count(left, ids["1:80"], 3); gone != 0 || stay != 100 || others != 3000 {
		t.Errorf("%d clients of an endpoint that is gone, %d of 100 of another, %d of 3000 of another Service", gone, stay, others)
	}
}

// count returns the number of remembered clients of a list at an endpoint.
func count(listed, id string, endpoint int) int {
	n, _ := strconv.ParseUint(id, 0, 32)
	return len(regexp.MustCompile(fmt.Sprintf(`%x:%x \. \d+[^,]*: 10\.244\.1\.%d \. 8080`, n>>16, n&0xffff, endpoint)).FindAllString(listed, -1))
}
