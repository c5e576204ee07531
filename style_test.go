// Package fairway holds the tests of the tree's structure; it has no code.
package fairway

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/fairway-net/fairway"

// Caps. A function that outgrows its cap hides a second one; a file, a second noun; the program
// itself, something that a package should know.
const (
	maxFunc = 70
	maxFile = 500
	maxMain = 700 // all of cmd/fairway, without tests
)

// longer lists what may be over a cap, with the reason. Keep it empty.
var longer = map[string]string{}

// law says which packages of ours a package may import, by path below internal/, and
// whether it may use more than the standard library. A package that is not listed has
// no law yet and fails the test: think about who may use it, then write it here.
var law = map[string]struct {
	ours     []string
	thirdOK  bool
	k8s      bool
	whyOrNot string
}{
	"service":              {nil, false, false, "the policy is pure: it must be readable and testable without a kernel or an API server"},
	"checksum":             {nil, false, false, "arithmetic"},
	"labels":               {nil, false, false, "selectors are values that any policy may hold"},
	"ipam":                 {[]string{"service", "labels"}, false, false, "which Service has which address is policy: pure"},
	"announce":             {[]string{"service", "labels", "ipam"}, false, false, "who announces what is policy: pure"},
	"egress":               {[]string{"service", "policy"}, false, false, "who leaves with which address is policy: pure"},
	"datapath/lb":          {[]string{"service"}, false, false, "pure arithmetic: the same in every mode, and in the gateway"},
	"flow":                 {[]string{"service"}, true, false, "what is stale follows from tables; enders behind its interface touch the kernel"},
	"datapath":             {[]string{"service", "flow"}, false, false, "the contract speaks of tables and flows only"},
	"netlink":              {nil, true, false, "sockets, messages, deadlines; what is asked, the callers know"},
	"numbers":              {nil, false, false, "constants: the register of what other programs share with us"},
	"process":              {nil, true, false, "facts of /proc about any process, and the memory of this one"},
	"nft":                  {[]string{"netlink", "process"}, true, false, "a table whose program is constant; what its elements mean, the mechanisms know"},
	"datapath/nftset":      {[]string{"service", "datapath", "datapath/lb", "nft"}, true, false, "what the modes on nf_tables have in common: names, keys and data of elements"},
	"datapath/nftables":    {[]string{"service", "datapath", "datapath/lb", "datapath/nftset", "nft", "flow", "numbers"}, true, false, "a mechanism renders tables; it knows no API objects"},
	"datapath/userspace":   {[]string{"checksum", "service", "datapath", "datapath/lb", "datapath/nftset", "netnamespace", "nft", "flow", "numbers"}, true, false, "a mechanism renders tables; it knows no API objects"},
	"datapath/iptables":    {[]string{"service", "datapath", "datapath/lb", "datapath/nftset", "nft", "flow", "numbers", "xtables"}, true, false, "a mechanism renders tables; it knows no API objects"},
	"datapath/ipvs":        {[]string{"service", "datapath", "datapath/lb", "datapath/nftset", "nft", "netlink", "flow", "numbers", "sysctl"}, true, false, "a mechanism renders tables; it knows no API objects"},
	"datapath/modes":       {[]string{"datapath", "datapath/nftables", "datapath/iptables", "datapath/ipvs", "datapath/userspace", "numbers"}, true, false, "the registry knows every mechanism, and nothing else"},
	"datapath/conformance": {[]string{"checksum", "service", "datapath", "testnet", "scenario", "kube", "flow", "childfault", "labels", "policy", "policy/nftpolicy", "policy/policytest"}, true, true, "tests"},
	"xtables":              {[]string{"netlink", "process"}, true, false, "runs iptables and reads its text and its rules; what chains mean, mode iptables and the takeover know"},
	"sysctl":               {nil, false, false, "writes a file below /proc/sys/net; which and why, its callers know"},
	"conntrack":            {[]string{"service", "flow", "netlink", "oneline", "sysctl", "netnamespace"}, true, false, "an ender of flows; what is stale, package flow knows"},
	"policy":               {[]string{"service", "labels"}, false, false, "NetworkPolicy is decided without a kernel or an API server"},
	"policy/enforcer":      {[]string{"service", "policy", "policy/nftpolicy", "datapath", "flow", "conntrack", "cni", "listener"}, true, false, "the loop knows no API objects"},
	"policy/policytest":    {[]string{"service", "policy", "labels"}, false, false, "objects for tests"},
	"policy/nftpolicy":     {[]string{"service", "policy", "nft", "numbers"}, true, false, "a mechanism renders tables; it knows no API objects"},
	"reset":                {[]string{"checksum", "conntrack", "nft", "numbers"}, true, false, "ends connections; knows flows, not Services"},
	"election":             {nil, false, false, "the proof is about a pure state machine: packets and times in, packets out"},
	"fence":                {[]string{"nft", "numbers"}, true, false, "rules that mute a node; who may speak, the election knows"},
	"l2":                   {[]string{"checksum", "numbers"}, true, false, "frames of ARP and neighbour discovery; for which addresses, it is told"},
	"liveness":             {[]string{"listener"}, true, false, "carries names of nodes from one program on a node to another"},
	"bfd":                  {[]string{"numbers"}, true, false, "packets between two programs; what it means that a router is gone, its caller knows"},
	"rib":                  {nil, true, false, "what a speaker and who makes routes tell each other, in two files or in memory; what routes are good for, their readers know"},
	"bgp":                  {[]string{"announce", "bfd", "rib", "service", "netnamespace"}, true, false, "sessions with routers; who announces what, package announce decides"},
	"speaker":              {[]string{"announce", "election", "fence", "l2", "rib", "service"}, true, false, "joins them; the API server is behind its Source"},
	"proxy":                {[]string{"service", "datapath", "flow"}, true, false, "the loop knows no API objects and no mechanism"},
	"kube":                 {[]string{"service", "policy", "labels", "ipam", "announce", "election", "oneline", "suggest"}, true, true, "the edge to the API server, the only importer of client-go"},
	"kube/objects":         {[]string{"oneline"}, true, true, "objects of any kind, for an administrator's commands; part of the edge to the API server"},
	"install":              {[]string{"datapath", "kube", "kube/objects", "oneline"}, true, true, "kustomize and the API's types; what it sends goes through kube/objects; of kube what a controller holds Services by, of datapath the names of modes"},
	"chart":                {[]string{"install"}, true, true, "templates are made of what install renders; it knows no component by name"},
	"config":               {[]string{"service", "kube", "datapath", "numbers", "configfile"}, true, true, "k8s.io/kube-proxy has the types of KubeProxyConfiguration"},
	"health":               {[]string{"service", "listener", "netnamespace"}, true, false, "answers load balancers and kubelets"},
	"listener":             {nil, false, false, "reads /proc, asks sockets and counts connections; why a port or a peer matters, its callers know"},
	"doctor":               {nil, false, false, "judges facts: it must be readable and testable without a node"},
	"doctor/probe":         {[]string{"doctor", "datapath/modes", "kube", "listener", "netlink", "nft", "node", "oneline", "status", "takeover", "xtables"}, true, false, "collects facts; what they mean, package doctor knows"},
	"suggest":              {nil, false, false, "words only"},
	"cli":                  {[]string{"suggest"}, true, false, "what both programs answer to a command line; what commands do, they know"},
	"cli/clitest":          {nil, true, false, "tests"},
	"configfile":           {[]string{"oneline"}, true, true, "a strict file of any kind; sigs.k8s.io/yaml and json are YAML libraries"},
	"edge":                 {[]string{"service", "datapath", "configfile", "oneline", "numbers", "announce", "election", "ipam", "labels", "netnamespace"}, true, false, "what nodes answer to health checks, and what a speaker is told; the API server is behind its Cluster"},
	"output":               {nil, true, true, "writes any value; sigs.k8s.io/yaml is a YAML library"},
	"status":               {[]string{"service", "announce", "egress", "listener"}, true, false, "what an agent says of itself; it reads neither the kernel nor the API server"},
	"cni":                  {[]string{"numbers"}, true, false, "the plugin runs by itself, started by the container runtime"},
	"hostport":             {[]string{"service", "datapath/lb", "cni", "nft", "numbers"}, true, false, "reads what the CNI plugin recorded; what it means, the policy decides"},
	"takeover":             {[]string{"service", "datapath", "oneline", "netlink", "xtables"}, true, false, "knows datapaths by their contract, and kube-proxy by its rules"},
	"node":                 {[]string{"cni", "netlink", "nft", "numbers", "rib", "sysctl"}, true, false, "the pod network is told its peers; it does not watch"},
	"oneline":              {nil, false, false, "a text only"},
	"dns":                  {[]string{"listener", "oneline", "numbers", "netnamespace"}, true, true, "CoreDNS brings its own client; of Kubernetes its interface names a type"},
	"image":                {nil, true, false, "writes archives; knows nothing of the rest"},
	"command":              {[]string{"kube", "listener", "node", "oneline", "status"}, true, false, "what programs share: flags, logs, exit status; what programs do, it does not know"},
	"command/agent":        {[]string{"command", "cni", "config", "conntrack", "datapath", "datapath/modes", "egress", "fence", "flow", "health", "hostport", "kube", "liveness", "node", "policy", "policy/enforcer", "policy/nftpolicy", "process", "proxy", "reset", "rib", "service", "status", "takeover"}, true, false, "joins what runs on a node; each part is a package that does not know the others"},
	"command/cluster":      {[]string{"command", "install", "kube", "kube/objects", "output", "status"}, true, true, "flags of tools that work through the API server; sigs.k8s.io/yaml is a YAML library"},
	"command/controller":   {[]string{"command", "ipam", "kube", "numbers"}, true, false, "joins what is decided once for all nodes; it touches no kernel"},
	"command/dns":          {[]string{"command", "dns"}, true, false, "flags of the DNS server, which shares nothing with the other programs"},
	"command/edge":         {[]string{"announce", "bgp", "command", "conntrack", "datapath", "datapath/modes", "edge", "fence", "flow", "health", "kube", "node", "numbers", "proxy", "reset", "rib", "service", "speaker", "takeover"}, true, false, "joins what runs on a load balancer; it knows no pod network of its own and no policies"},
	"command/inspect":      {[]string{"command", "command/agent", "datapath", "datapath/modes", "doctor", "doctor/probe", "egress", "kube", "output", "policy", "service"}, true, false, "tools that read and write out what packages of policy say"},
	"command/speaker":      {[]string{"bgp", "command", "fence", "kube", "liveness", "numbers", "rib", "service", "speaker"}, true, false, "joins what announces; it is replaced apart from the agent, and shares no part with its datapath"},
	"netnamespace":         {nil, true, false, "namespaces as the kernel has them; what for, its callers know"},
	"testnet":              {[]string{"checksum", "netnamespace"}, true, false, "namespaces for tests"},
	"childfault":           {nil, true, false, "faults inside programs, for tests"},
	"uml":                  {nil, false, false, "a kernel for tests"},
	"page":                 {nil, false, false, "texts only, for tests"},
	"scenario":             {[]string{"service", "kube", "testnet"}, true, true, "reads the behaviours that tests share"},
}

// netIPers may use net.IP, with the reason.
var netIPers = map[string]string{
	"internal/datapath/ipvs": "netlink's routes speak net.IPNet",
	"internal/cni":           "CNI's result types and netlink speak net.IPNet; converted at the edge of each call",
	"internal/node":          "netlink speaks net.IPNet",
	"internal/testnet":       "netlink speaks net.IPNet",
	"internal/dns":           "miekg/dns records hold net.IP",
	"lab/fabric":             "netlink speaks net.IPNet",
	"lab/node":               "netlink speaks net.IPNet",
	"lab/pki":                "x509 certificates hold net.IP",
	"lab/cluster":            "x509 certificates hold net.IP",
}

// source is one parsed file.
type source struct {
	path string // slash separated, from the root
	text []byte
	file *ast.File
	fset *token.FileSet
}

func (s source) dir() string { return path.Dir(s.path) }
func (s source) test() bool  { return strings.HasSuffix(s.path, "_test.go") }
func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(n.Pos()).Line)
}

// sources parses every Go file of the repository, the lab's module included.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && p != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "bin" || name == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(p), text, f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d Go files only: is this the root of the repository?", len(all))
	}
	return all
}

func TestFormat(t *testing.T) {
	for _, s := range sources(t) {
		want, err := format.Source(s.text)
		if err != nil {
			t.Errorf("%s: %v", s.path, err)
		} else if !bytes.Equal(want, s.text) {
			t.Errorf("%s is not formatted: run gofmt -w %s", s.path, s.path)
		}
	}
}

// TestDocs holds that every package says what it hides and promises.
func TestDocs(t *testing.T) {
	docs := map[string]string{}
	for _, s := range sources(t) {
		if _, ok := docs[s.dir()]; !ok && !s.test() {
			docs[s.dir()] = ""
		}
		if s.file.Doc != nil && !s.test() {
			docs[s.dir()] += s.file.Doc.Text()
		}
	}
	for dir, doc := range docs {
		if len(doc) < 60 {
			t.Errorf("package %s has no package comment worth the name: say what it hides and what it promises", dir)
		}
	}
}

func TestSizes(t *testing.T) {
	program := 0
	for _, s := range sources(t) {
		if s.dir() == "cmd/fairway" && !s.test() {
			program += bytes.Count(s.text, []byte("\n"))
		}
		if n := bytes.Count(s.text, []byte("\n")); n > maxFile && longer[s.path] == "" {
			t.Errorf("%s has %d lines, at most %d: find the second noun in it", s.path, n, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > maxFunc && longer[s.path+":"+f.Name.Name] == "" {
				t.Errorf("%s: %s has %d lines, at most %d: find the second function in it", s.at(f), f.Name.Name, n, maxFunc)
			}
		}
	}
	if program == 0 || program > maxMain {
		t.Errorf("cmd/fairway has %d lines, at most %d: it is the tree of commands, what they do is in internal/command and below", program, maxMain)
	}
}

// TestImportLaw holds who may know whom. It looks at shipped code, not at tests.
func TestImportLaw(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		pkg, ok := strings.CutPrefix(s.dir(), "internal/")
		if !ok || s.test() {
			continue
		}
		seen[pkg] = true
		l, ok := law[pkg]
		if !ok {
			t.Errorf("internal/%s has no law: decide what it may import and write it into the table law", pkg)
			continue
		}
		for _, i := range s.file.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			ours, isOurs := strings.CutPrefix(p, module+"/internal/")
			switch {
			case isOurs && !slices.Contains(l.ours, ours):
				t.Errorf("%s imports internal/%s: %s", s.path, ours, l.whyOrNot)
			case isOurs:
			case strings.Contains(p, "k8s.io/") && !l.k8s:
				t.Errorf("%s imports %s: only internal/kube knows Kubernetes (%s)", s.path, p, l.whyOrNot)
			case strings.Contains(strings.SplitN(p, "/", 2)[0], ".") && !l.thirdOK:
				t.Errorf("%s imports %s: the standard library only (%s)", s.path, p, l.whyOrNot)
			}
		}
	}
	doc, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range law {
		if !seen[pkg] {
			t.Errorf("the law names internal/%s, which does not exist", pkg)
		}
		if !regexp.MustCompile("(?m)^\\|.*`(internal/" + pkg + "|…/" + path.Base(pkg) + "|" + path.Base(pkg) + ")`").Match(doc) {
			t.Errorf("docs/architecture.md has no row for internal/%s: say what it hides", pkg)
		}
	}
}

// TestForbidden holds what reviewers would otherwise have to look for.
func TestForbidden(t *testing.T) {
	for _, s := range sources(t) {
		var above []ast.Node
		ast.Inspect(s.file, func(n ast.Node) bool {
			if n == nil {
				above = above[:len(above)-1]
				return true
			}
			above = append(above, n)
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: func init: build it by hand, from main down", s.at(n))
				}
			case *ast.SelectorExpr:
				forbidden(t, s, n, above)
			}
			return true
		})
	}
}

func forbidden(t *testing.T, s source, n *ast.SelectorExpr, above []ast.Node) {
	x, ok := n.X.(*ast.Ident)
	if !ok {
		return
	}
	switch x.Name + "." + n.Sel.Name {
	case "context.TODO":
		t.Errorf("%s: context.TODO: take the caller's", s.at(n))
	case "time.Sleep":
		// In a loop it is the pause between two looks at a condition.
		loop := func(n ast.Node) bool {
			switch n.(type) {
			case *ast.ForStmt, *ast.RangeStmt:
				return true
			}
			return false
		}
		if !slices.ContainsFunc(above, loop) {
			t.Errorf("%s: time.Sleep outside a loop: wait for what you wait for", s.at(n))
		}
	case "netlink.NewHandle", "netlinksafe.NewHandle":
		// Functions of that package have a limit of a minute; a handle has none.
		if !s.test() && !strings.HasSuffix(s.dir(), "testnet") && !calls(above, "SetSocketTimeout") {
			t.Errorf("%s: %s.NewHandle without SetSocketTimeout: the kernel may never answer", s.at(n), x.Name)
		}
	case "net.IP":
		if _, ok := netIPers[s.dir()]; !ok && !s.test() {
			t.Errorf("%s: net.IP: use netip.Addr, or list the package with its reason", s.at(n))
		}
	}
}

// calls reports whether the function around a node calls a method of that name.
func calls(above []ast.Node, method string) (found bool) {
	for _, n := range above {
		if f, ok := n.(*ast.FuncDecl); ok {
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				found = found || ok && sel.Sel.Name == method
				return true
			})
		}
	}
	return found
}

// retired are words that this project does not use any more, each with what a kube-proxy or
// netfilter engineer says instead (docs/glossary.md). They are refused in identifiers,
// comments and texts, but for the names that a former release gave to kernel objects.
var retired = []struct{ pattern, instead string }{
	{`another hand|somebody else`, "another program"},
	{`[Vv]antage`, "node"},
	{`MasqueradeFar|KUBE-MARK-FAR`, "MasqueradeOffCluster, KUBE-EXT-OFF-CLUSTER"},
	{`\b[Ii]nsiders?\b`, "internal clients"},
	{`\bLacks\b`, "Unsupported"},
	{`\bIfGone\b|\bDoubt\b`, "Unconfirmed"},
	{`\bJudge\b`, "Checker"},
	{`\bCarrier\b|\bReleaser\b`, "a method of datapath.Datapath"},
	{`\b[Ss]ticker\b|\bdeafen|\bDoom\b|\bknobs\b|\bweightless\b`, "the word in docs/glossary.md"},
	{`\b[Pp]ainter\b|\bwitness\b|\bmayBe\b|\bfanout\b`, "the word in docs/glossary.md"},
	{`\bshall\b`, "must, or the present tense"},
	{`\bhow[TA-Z]\w*|\bloadWays?\b`, "verdict ID, dispatch"},
	{`\b(sticky|nodeport-sticky|sticky-outside)[46]\b|\brecall([46]|-\w+)?\b|\blearners?\b|\bgive-back\b|\blearn-(prerouting|output)\b|\bremember-\d+\b`, "affinity-ids, affinity-lookup, affinity-update"},
	{`\breserved[46]\b|\bunserved-\w+|\bchain (unserved|closer)\b|\bcloser-nodeport\b`, "cluster-ips, cluster-ips-check, policy-check"},
	{`\binet fairway services[46]\b|\b(map|set) (services|nodeport|outside)[46] \{|\bmap ways \{`, "frontends, frontends-internal, frontends-external, nodeports, dispatch"},
	{`\bdoubt(Pause)?\(|\bDoubts\(|\bdigestOf\b|\bfarMasqueraded\b|\bmarkFar\b`, "unverified, fingerprint, off cluster"},
	{`\btype (wire|spot|sketch|drawing|painter|ring) \b`, "what it is: vethPair, genlConn, chainRef, builder, fragment"},
}

// retiredIn are the files where such words are looked for: programs of the kernel and documentation, and Go. What
// former releases called things, and why things were decided, keep the names.
func retiredIn(t *testing.T) map[string]string {
	texts := map[string]string{}
	for _, s := range sources(t) {
		texts[s.path] = string(s.text)
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "lab/*.md", "internal/*/*.nft*", "internal/*/*/*.nft*"} {
		all, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			text, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			texts[filepath.ToSlash(p)] = string(text)
		}
	}
	for p := range texts {
		if name := path.Base(p); p == "style_test.go" || name == "former.go" || name == "former_test.go" || name == "CHANGELOG.md" {
			delete(texts, p)
		}
	}
	return texts
}

func TestRetiredWords(t *testing.T) {
	texts, programs := retiredIn(t), 0
	for p := range texts {
		if strings.Contains(p, ".nft") {
			programs++
		}
	}
	if programs < 10 {
		t.Errorf("only %d programs of nf_tables were found", programs)
	}
	for _, r := range retired {
		re := regexp.MustCompile(r.pattern)
		for p, text := range texts {
			for i, line := range strings.Split(text, "\n") {
				if word := re.FindString(line); word != "" {
					t.Errorf("%s:%d: %q is retired: write %s", p, i+1, word, r.instead)
				}
			}
		}
	}
}
